"""Sessions that are taken from one server to another, over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.api.house import error_of, house
from tests.api.test_forks import talked_to


async def test_a_session_goes_to_another_server_and_on_from_there(tmp_path: Path):
    async with house(tmp_path / "a") as one, house(tmp_path / "b") as other:
        session = await talked_to(one, title="mine", metadata={"a": "b"})
        path = f"/roost/v1/sessions/{session['id']}/export"
        archive = await one.client.get(path, params={"at": "1"})
        assert archive.status_code == 200
        assert archive.headers["content-disposition"].startswith("attachment")
        agent, place = await other.agent(), await other.environment()
        sent = {"files": {"archive": archive.content}}
        refused = await other.client.post("/roost/v1/sessions/import", **sent)
        error_of(refused, 404)  # the agent it had is the other server's
        fields = {"agent": agent["id"], "environment_id": place["id"]}
        taken = await other.post("/roost/v1/sessions/import", None, **sent, data=fields)
        assert (taken["title"], taken["metadata"]) == ("mine", {"a": "b"})
        assert taken["id"] != session["id"]
        assert taken["status"] == "idle"
        events = (await other.get(f"/v1/sessions/{taken['id']}/events"))["data"]
        said = [event for event in events if event["type"] == "user.message"]
        assert [event["content"][0]["text"] for event in said] == ["first"]
        assert events[-1]["type"] == "roost.imported"
        assert events[-1]["session_id"] == session["id"]
        assert len((await other.get(f"/roost/v1/sessions/{taken['id']}/turns"))["data"]) == 1
        await other.say(taken, "and on")
        again = await one.post("/roost/v1/sessions/import", None, **sent)
        assert again["agent"] == session["agent"]


async def test_what_is_no_archive_is_refused_and_leaves_nothing(tmp_path: Path):
    async with house(tmp_path) as there:
        for content in (b"", b"PK something else"):
            answer = await there.client.post(
                "/roost/v1/sessions/import", files={"archive": content}
            )
            assert error_of(answer, 400)["details"]["error_code"] == "bad_archive"
        answer = await there.client.post("/roost/v1/sessions/import", data={"title": "x"})
        error_of(answer, 400)
        assert (await there.get("/v1/sessions"))["data"] == []
        assert list((tmp_path / "transfer").iterdir()) == []
        stranger = await there.user("tenant_other")
        session = await talked_to(there)
        async with stranger:
            path = f"/roost/v1/sessions/{session['id']}/export"
            error_of(await stranger.get(path), 404)
