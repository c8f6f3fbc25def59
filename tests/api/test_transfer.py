"""Sessions that are taken from one server to another, over HTTP."""

from __future__ import annotations

import tarfile
from pathlib import Path

from msgspec.json import encode
from tests.api.api_server import api_server, error_of
from tests.api.test_forks import talked_to
from tests.unit.test_archives import CARD, LOG, LONGEST, deepest_of, in_each_other, named, tar_of

from roost.core.work.inputs import history
from roost.domain.archive import Card
from roost.harnesses.logged_past import LoggedPast
from roost.harnesses.message_history import MessageHistory


async def test_a_session_goes_to_another_server_and_on_from_there(tmp_path: Path):
    async with api_server(tmp_path / "a") as one, api_server(tmp_path / "b") as other:
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
    async with api_server(tmp_path) as there:
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


async def test_an_archive_grants_nothing_that_the_request_does_not_ask_for(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,vault,full") as there:
        agent = (await there.agent())["id"]
        place = await there.environment(
            metadata={"roost.trust_level": "full", "roost.mount_scope": "workspace+vault"}
        )
        shared = await there.post("/roost/v1/workspaces", {"name": "company"})
        said = Card(
            agent_id=agent,
            environment_id=place["id"],
            harness="scripted",
            trust_level="full",
            mount_scope="workspace+vault",
            metadata={"roost.workspace": shared["id"], "roost.sandbox_fallback": "full", "a": "b"},
        )
        sent = {"files": {"archive": tar_of([(named("about.json"), encode(said)), LOG])}}
        made = await there.post("/roost/v1/sessions/import", None, **sent)
        assert (made["trust_level"], made["mount_scope"]) == ("sandboxed", "workspace")
        assert (made["workspace"], made["metadata"]) == (None, {"a": "b"})
        asked = {"trust_level": "full", "mount_scope": "workspace+vault"}
        made = await there.post("/roost/v1/sessions/import", None, **sent, data=asked)
        assert {name: made[name] for name in asked} == asked
        low = await there.user(trust_ceiling="sandboxed")
        async with low:
            error_of(await low.post("/roost/v1/sessions/import", **sent, data=asked), 403)


@in_each_other
async def test_directories_without_end_are_refused_and_the_server_starts_again(
    tmp_path: Path, levels: int, name: str
):
    fit = LONGEST // (len(name) + 1)
    nest = [
        (named("files" + f"/{name}" * depth, tarfile.DIRTYPE), b"") for depth in range(1, fit + 50)
    ]
    data = tar_of([CARD, LOG, *nest])
    async with api_server(tmp_path) as there:
        answer = await there.client.post("/roost/v1/sessions/import", files={"archive": data})
        error = error_of(answer, 400)
        assert error["details"]["error_code"] == "bad_archive"
        assert "fewer levels" in error["details"]["hint"]
        assert list((tmp_path / "transfer").iterdir()) == []
    (tmp_path / "transfer" / "left").mkdir()
    with deepest_of(tmp_path / "transfer" / "left", levels, name):
        pass
    async with api_server(tmp_path) as there:
        assert (await there.get("/v1/sessions"))["data"] == []
        assert not (tmp_path / "transfer").exists()


async def test_a_path_longer_than_any_is_refused_wherever_it_is_given(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session = await there.session()
        path, deep = f"/roost/v1/sessions/{session['id']}/files", "d/" * 2500 + "f"
        error_of(await there.client.get(path, params={"path": deep}), 400)
        error_of(await there.client.post(f"{path}/directories", json={"path": deep}), 400)


async def test_a_withdrawn_message_stays_withdrawn_in_an_archive(tmp_path: Path):
    async with api_server(tmp_path / "a") as one, api_server(tmp_path / "b") as other:
        session = await talked_to(one)
        await one.say(session, "withdrawn")
        path = f"/v1/sessions/{session['id']}/events"
        await one.post(path, {"events": [{"type": "user.interrupt"}]})
        await one.say(session, "third")
        await one.rest(session)
        archive = await one.client.get(f"/roost/v1/sessions/{session['id']}/export")
        fields = {"agent": (await other.agent())["id"]}
        fields["environment_id"] = (await other.environment())["id"]
        sent = {"files": {"archive": archive.content}, "data": fields}
        taken = await other.post("/roost/v1/sessions/import", None, **sent)
        events = (await other.get(f"/v1/sessions/{taken['id']}/events"))["data"]
        said = [event for event in events if event["type"] == "user.message"]
        words = [event["content"][0]["text"] for event in said]
        assert words == ["first", "second", "withdrawn", "third"]
        assert ["withdrawn_at" in event for event in said] == [False, False, True, False]
        found = await other.store.sessions.find(taken["id"])
        assert (found.state.status, found.state.queued) == ("idle", 0)
        model = MessageHistory()  # what an agent is told that goes on from here
        past = await LoggedPast.read(history(other.store.log, found))
        async for entry in history(other.store.log, found):
            if not (entry.queued or entry.withdrawn):
                model.take(entry)
        for told in (str(model.messages()), past.in_words(past.told)):
            assert "third" in told
            assert "withdrawn" not in told


async def test_nobody_says_of_their_own_message_that_it_was_withdrawn(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session = await there.session()
        content = [{"type": "text", "text": "Hello"}]
        event = {"type": "user.message", "content": content, "withdrawn_at": "2026-01-01"}
        path = f"/v1/sessions/{session['id']}/events"
        error_of(await there.client.post(path, json={"events": [event]}), 400)
