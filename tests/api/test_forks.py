"""Forks and rewinds over HTTP. Who may do what; `tests/core/test_forks.py` has what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import TENANT, ApiServer, api_server, error_of

from roost.core.sessions.forks import Forks


async def talked_to(there: ApiServer, **fields: Any) -> Any:
    """A session with two turns."""
    session = await there.session(**fields)
    for text in ("first", "second"):
        await there.say(session, text)
        await there.rest(session)
    return session


async def test_a_fork_is_a_session_like_its_original(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session = await talked_to(there, title="mine", metadata={"a": "b"})
        path = f"/roost/v1/sessions/{session['id']}"
        turns = (await there.get(f"{path}/turns"))["data"]
        fork = await there.post(f"{path}/fork", {"at": 1})
        assert fork["forked_from"] == {
            "session_id": session["id"],
            "event_id": turns[0]["event_id"],
        }
        for field in ("agent", "environment_id", "title", "metadata", "trust_level", "mount_scope"):
            assert fork[field] == session[field], field
        events = (await there.get(f"/v1/sessions/{fork['id']}/events"))["data"]
        said = [event for event in events if event["type"] == "user.message"]
        assert [event["content"][0]["text"] for event in said] == ["first"]
        named = await there.post(f"{path}/fork", {"at": said[0]["id"], "title": "another"})
        assert named["title"] == "another"
        await there.say(fork, "and on")


async def test_turns_are_told_from_pages_that_are_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with api_server(tmp_path) as there:
        session = await there.session()
        for _ in range(4):
            await there.say(session, "x" * 50_000)
            await there.rest(session)
        monkeypatch.setattr("roost.core.sessions.forks._PAGE_BYTES", 60_000)
        log, sizes = there.deps.services[Forks]._log, []
        page = log.page

        async def measured(*asked: Any) -> Any:
            found = await page(*asked)
            sizes.append(sum(len(entry.body) for entry in found))
            return found

        monkeypatch.setattr(log, "page", measured)
        turns = (await there.get(f"/roost/v1/sessions/{session['id']}/turns"))["data"]
        assert [turn["number"] for turn in turns] == [1, 2, 3, 4]
        assert len(sizes) > 2
        assert max(sizes) < 120_000


async def test_a_fork_is_made_once_under_an_idempotency_key(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session, other = await talked_to(there), await talked_to(there)
        path = "/roost/v1/sessions/{}/fork"
        key = {"idempotency-key": "once"}
        first = await there.post(path.format(session["id"]), {"at": 1}, headers=key)
        again = await there.post(path.format(session["id"]), {"at": 1}, headers=key)
        assert first["id"] == again["id"]
        refused = await there.client.post(path.format(other["id"]), json={"at": 1}, headers=key)
        error_of(refused, 409)


async def test_a_rewind_leaves_out_of_listings_what_it_leaves_in_the_log(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session = await talked_to(there)
        events = f"/v1/sessions/{session['id']}/events"
        before = (await there.get(events))["data"]
        await there.post(f"/roost/v1/sessions/{session['id']}/rewind", {"to": 1})
        after = (await there.get(events))["data"]
        whole = (await there.get(events, include_rewound="true"))["data"]
        assert whole[:-1] == before
        assert whole[-1] == after[-1]
        assert after[-1]["type"] == "roost.rewound"
        assert after[-1]["to"]["seq"] == after[-2]["seq"]
        assert [event["seq"] for event in (await there.get(events, order="desc"))["data"]] == [
            event["seq"] for event in reversed(after)
        ]


@pytest.mark.parametrize("body", [{"at": 0}, {"at": -1}, {"at": []}, {"at": 1, "more": 1}])
async def test_what_makes_no_sense_is_refused(tmp_path: Path, body: Any):
    async with api_server(tmp_path) as there:
        session = await talked_to(there)
        path = f"/roost/v1/sessions/{session['id']}"
        error_of(await there.client.post(f"{path}/fork", json=body), 400)
        error_of(await there.client.post(f"{path}/rewind", json={}), 400)
        error_of(await there.client.post(f"{path}/fork", json={"at": 3}), 404)
        error_of(await there.client.post(f"{path}/rewind", json={"to": "sevt_none"}), 404)


async def test_a_session_that_runs_is_not_rewound(tmp_path: Path):
    async with api_server(tmp_path) as there:
        session = await talked_to(there)
        await there.say(session, "third")
        path = f"/roost/v1/sessions/{session['id']}/rewind"
        error = error_of(await there.client.post(path, json={"to": 1}), 400)
        assert error["details"]["error_code"] == "session_running"
        assert "interrupt" in error["details"]["hint"]


async def test_nobody_forks_what_is_somebody_elses_or_beyond_their_trust(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as there:
        session = await talked_to(there, trust_level="full")
        for tenant, status in (("tenant_other", 404), (TENANT, 403)):
            async with await there.user(
                tenant, role="user", trust_ceiling="sandboxed", sees="tenant"
            ) as stranger:
                path = f"/roost/v1/sessions/{session['id']}"
                error_of(await stranger.post(f"{path}/fork", json={}), status)
                error_of(await stranger.post(f"{path}/rewind", json={"to": 1}), status)
        page = await there.get("/v1/sessions")
        assert len(page["data"]) == 1


async def test_a_session_in_a_shared_workspace_is_rewound_without_the_files(tmp_path: Path):
    async with api_server(tmp_path) as there:
        await there.post("/roost/v1/workspaces", {"name": "ours"})
        session = await talked_to(there, workspace="ours")
        path = f"/roost/v1/sessions/{session['id']}"
        refused = error_of(await there.client.post(f"{path}/rewind", json={"to": 1}), 400)
        assert 'files: "keep"' in refused["details"]["hint"]
        await there.post(f"{path}/rewind", {"to": 1, "files": "keep"})
        await there.post(f"{path}/rewind", {"to": 1, "files": False})


async def test_a_fork_leaves_a_shared_workspace_unless_it_is_to_stay_there(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as there:
        levels = {"trust_levels": ["sandboxed", "full"]}
        await there.post("/roost/v1/workspaces", {"name": "ours", "settings": levels})
        session = await talked_to(there, workspace="ours")
        path = f"/roost/v1/sessions/{session['id']}"
        for asked, workspace in (({}, None), ({"files": "keep"}, session["workspace"])):
            fork = await there.post(f"{path}/fork", asked)
            assert fork["workspace"] == workspace
            events = (await there.get(f"/v1/sessions/{fork['id']}/events"))["data"]
            [said] = [event for event in events if event["type"] == "roost.forked"]
            assert said["files"] is (workspace is None)
        error_of(await there.client.post(f"{path}/fork", json={"files": "move"}), 400)
        alone = await talked_to(there)
        path = f"/roost/v1/sessions/{alone['id']}/fork"
        refused = error_of(await there.client.post(path, json={"files": "keep"}), 400)
        assert "shares no workspace" in refused["message"]
        trusted = await talked_to(there, workspace="ours", trust_level="full")
        path = f"/roost/v1/sessions/{trusted['id']}/fork"
        refused = error_of(await there.client.post(path, json={}), 400)
        assert 'files: "keep"' in refused["details"]["hint"]
        assert (await there.post(path, {"files": "keep"}))["workspace"] == session["workspace"]
