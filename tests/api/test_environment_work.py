"""Self-hosted environments: sessions on them, the worker protocol, and what workers may do."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2
import pytest
from anthropic.types import beta
from anthropic.types.beta import environments as types
from tests.api.api_server import (
    TENANT,
    ApiServer,
    api_server,
    client_of,
    error_of,
    message,
    official,
)

from roost.api.access.workers import WorkerAccess
from roost.api.operations import OPERATIONS
from roost.core.work.work_items import WorkItems
from roost.core.write.intake import Intake
from roost.domain.events import Draft
from roost.domain.ledger import Batch
from roost.domain.session import Lease, Move, Pending
from roost.domain.work_item import WorkItem
from roost.ports.drafts import new_draft

FIRST = {"expected_last_heartbeat": "NO_HEARTBEAT"}


@dataclass
class Place:
    """A server with a self-hosted environment, a session on it, and a worker's client."""

    roost: ApiServer
    environment: Any
    session: Any
    key: Any
    worker: httpx2.AsyncClient

    @property
    def items(self) -> WorkItems:
        return self.roost.deps.services[WorkItems]

    def at(self, *path: str) -> str:
        return "/".join([f"/v1/environments/{self.environment['id']}/work", *path])

    async def begin(self, *calls: Draft, kind: Any = "tool") -> Lease:
        """A turn that has begun, as a runner does it, and that waits for these calls, each of its kind."""
        await self.roost.say(self.session, "go on")
        await self.roost.store.log.renew("node_1", 60)
        [lease] = await self.roost.store.log.claim("node_1", 9)
        found = await self.roost.store.sessions.find(self.session["id"])
        await self.items.want(found)
        takes = await self.roost.store.log.inputs(lease.session_id)
        kinds = [kind] * len(calls) if isinstance(kind, str) else kind
        blocks = [
            Pending(call.id, of, offered=of == "custom_tool")
            for call, of in zip(calls, kinds, strict=True)
        ]
        await self.roost.store.log.append(lease, Batch(takes=takes, drafts=calls, blocks=blocks))
        return lease

    async def wait(self, *calls: Draft, kind: Any = "tool") -> None:
        """The same, and at rest since."""
        lease = await self.begin(*calls, kind=kind)
        head = (await self.roost.store.sessions.find(lease.session_id)).state.head
        reason = {"type": "requires_action", "event_ids": [call.id for call in calls]}
        assert await self.roost.store.log.finish(lease, head, Batch(), reason) is not None

    async def poll(self, **query: Any) -> Any:
        answer = await self.worker.get(self.at("poll"), params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def claimed(self, **heartbeat: Any) -> tuple[Any, httpx2.AsyncClient]:
        """An item that was polled, acknowledged, and beaten once; and a client with its token."""
        item = await self.poll()
        mine = client_of(self.roost.app, token_of(item))
        await ok(self.worker.post(self.at(item["id"], "ack")))
        await ok(mine.post(self.at(item["id"], "heartbeat"), params={**FIRST, **heartbeat}))
        return item, mine

    async def item(self) -> Any:
        """The only item, whatever its id is by now."""
        [item] = (await self.roost.get(self.at()))["data"]
        return item

    async def events(self, *kinds: str) -> list[Any]:
        page = await self.roost.get(f"/v1/sessions/{self.session['id']}/events")
        return [event for event in page["data"] if not kinds or event["type"] in kinds]

    def result(self, call: Draft, text: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        said = {"tool_use_id": call.id, "content": content, "is_error": False}
        return {"type": "user.tool_result", **said}

    async def send(self, client: httpx2.AsyncClient, *events: Any) -> httpx2.Response:
        path = f"/v1/sessions/{self.session['id']}/events"
        return await client.post(path, json={"events": list(events)})


async def ok(request: Any) -> Any:
    answer = await request
    assert answer.status_code == 200, answer.text
    return answer.json()


def token_of(item: Any) -> str:
    padded = item["secret"] + "=" * (-len(item["secret"]) % 4)
    return str(json.loads(base64.urlsafe_b64decode(padded))["sessions_token"])


def bash(command: str = "true", name: str = "bash") -> Draft:
    given = {"command": command}
    return new_draft("agent.tool_use", name=name, input=given, evaluated_permission="allow")


@asynccontextmanager
async def self_hosted(data: Path, **settings: Any) -> AsyncGenerator[Place, None]:
    async with api_server(data, **settings) as roost:
        environment = await roost.environment(config={"type": "self_hosted"})
        session = await roost.session(environment_id=environment["id"])
        path = f"/roost/v1/environments/{environment['id']}/keys"
        key = await roost.post(path, {"name": "machine"})
        worker = client_of(roost.app, "")
        del worker.headers["x-api-key"]
        worker.headers["authorization"] = f"Bearer {key['secret']}"
        worker.headers["anthropic-worker-id"] = "machine-1"
        yield Place(roost, environment, session, key, worker)


async def test_a_session_gets_a_harness_that_leaves_its_tools_to_workers(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        official(beta.BetaEnvironment, place.environment)
        assert place.session["harness"] == "able"
        environment_id, agent = place.environment["id"], await place.roost.agent()
        file = {"type": "file", "file_id": "file_x"}
        for more, says in (
            ({"harness": "plain"}, "'plain' agents run on this server only"),
            ({"resources": [file]}, "`resources` are not supported with self-hosted environments"),
            ({"trust_level": "full"}, "trust_level: only 'sandboxed'"),
            ({"mount_scope": "workspace+vault"}, "mount_scope: only 'workspace'"),
        ):
            body = {"agent": agent["id"], "environment_id": environment_id, **more}
            error = error_of(await place.roost.client.post("/v1/sessions", json=body), 400)
            assert says in error["message"]
        body = {"config": {"type": "cloud"}}
        path = f"/v1/environments/{environment_id}"
        error_of(await place.roost.client.post(path, json=body), 400)


async def test_an_item_goes_from_poll_to_stop(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        assert await place.poll() is None
        call = bash()
        await place.wait(call)
        item = await place.poll()
        official(types.BetaSelfHostedWork, item)
        assert (item["state"], item["data"]["id"]) == ("queued", place.session["id"])
        assert await place.poll() is None, "it is another worker's for 5 seconds"
        stats = await place.roost.get(place.at("stats"))
        official(types.BetaSelfHostedWorkQueueStats, stats)
        assert (stats["depth"], stats["pending"], stats["workers_polling"]) == (0, 1, 1)
        first, item = item, await place.poll(reclaim_older_than_ms=0)
        assert item["id"] != first["id"]
        taken = await ok(place.worker.post(place.at(item["id"], "ack")))
        assert (taken["state"], taken["secret"]) == ("starting", None)
        mine = client_of(place.roost.app, token_of(item))
        beat = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        official(types.BetaSelfHostedWorkHeartbeatResponse, beat)
        assert (beat["state"], beat["lease_extended"], beat["ttl_seconds"]) == ("active", True, 90)
        repeated = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        query = {"expected_last_heartbeat": repeated["last_heartbeat"], "desired_ttl_seconds": 7}
        assert (await ok(mine.post(place.at(item["id"], "heartbeat"), params=query)))[
            "ttl_seconds"
        ] == 7
        # Whoever has an older claim is told that it has lost the item.
        other = client_of(place.roost.app, token_of(first))
        lost = await other.post(place.at(first["id"], "heartbeat"), params=FIRST)
        error = error_of(lost, 412)
        assert error["details"]["error_code"] == "heartbeat_precondition_failed"
        assert error["details"]["current_state"]["state"] == "active"
        error_of(await other.post(place.at(first["id"], "stop"), json={"force": True}), 409)
        # The result ends what the session waits for, and its turn goes on.
        sent = await place.send(mine, place.result(call, "done"))
        assert sent.status_code == 200, sent.text
        await place.roost.rest(place.session)
        stopped = await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))
        assert stopped["state"] == "stopped"
        error_of(await mine.post(place.at(item["id"], "stop"), json={}), 409)
        beat = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        assert (beat["state"], beat["lease_extended"]) == ("stopped", False)
        [listed] = (await place.roost.get(place.at()))["data"]
        assert listed == await place.roost.get(place.at(item["id"]))
        changed = await place.roost.post(place.at(item["id"]), {"metadata": {"a": "1"}})
        assert changed["metadata"] == {"a": "1"}


async def test_a_poll_waits_until_there_is_something_to_do(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        found: list[Any] = []

        async def ask() -> None:
            while not found:
                item = await place.poll(block_ms=999)
                found.extend([item] if item else [])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await place.wait(bash())
        assert found[0]["data"]["id"] == place.session["id"]
        for wrong in ({"block_ms": 0}, {"block_ms": 1000}):
            error_of(await place.worker.get(place.at("poll"), params=wrong), 400)


async def test_an_item_that_is_stopped_while_it_is_needed_is_queued_again(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        item, mine = await place.claimed()
        asked = await place.roost.post(place.at(item["id"], "stop"), {})
        assert asked["state"] == "stopping"
        beat = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        assert beat["state"] == "stopping", "its worker is told, whatever it expects"
        await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))
        following = await place.poll()
        assert following["id"] != item["id"]
        assert await place.events("user.tool_result") == [], "its worker ran nothing any more"
        lost = await mine.post(place.at(item["id"], "heartbeat"), params=FIRST)
        error_of(lost, 412)
        # By an API key it is taken away from a worker that may be running the call.
        await ok(place.worker.post(place.at(following["id"], "ack")))
        await place.roost.post(place.at(following["id"], "stop"), {"force": True})
        [closed] = await place.events("user.tool_result")
        assert closed["closed"] == "worker_lost"
        assert "unknown" in closed["content"][0]["text"]


@pytest.mark.parametrize("name", ["bash", "read"])
async def test_what_a_lost_worker_may_have_begun_is_unknown(tmp_path: Path, name: str):
    async with self_hosted(tmp_path, work_lease_seconds=1) as place:
        call = bash(name=name)
        await place.wait(call)
        item, mine = await place.claimed()
        while (found := await place.item())["state"] == "active":
            await place.items.sweep()
            await anyio.sleep(0.05)
        closed = await place.events("user.tool_result")
        if name == "read":  # it changes nothing, so the next worker makes it
            assert (closed, found["state"]) == ([], "queued")
            return
        assert [event["closed"] for event in closed] == ["worker_lost"]
        assert found["state"] == "queued", "the session works: it may want a worker soon"
        # The worker lives on, and brings its result too late: it is told what counts.
        late = await ok(place.send(mine, place.result(call, "done")))
        assert late["data"][0]["id"] == closed[0]["id"]
        assert await place.events("user.tool_result") == closed
        error_of(await mine.post(place.at(item["id"], "heartbeat"), params=FIRST), 412)


async def test_the_first_result_counts(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        _, mine = await place.claimed()
        first = await ok(place.send(mine, place.result(call, "")))
        again = await ok(place.send(place.worker, place.result(call, "")))
        assert again == first
        error_of(await place.send(mine, place.result(call, "another")), 400)
        error_of(await place.send(mine, {**place.result(call, "x"), "tool_use_id": "sevt_no"}), 400)


async def test_results_that_come_again_are_answered_in_their_order(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        calls = [bash(str(i)) for i in range(3)]
        own = new_draft("agent.custom_tool_use", name="now", input={})
        await place.wait(*calls, own, kind=["tool"] * 3 + ["custom_tool"])
        _, mine = await place.claimed()
        brought = [place.result(call, f"{i}" * 700_000) for i, call in enumerate(calls)]
        first = [(await ok(place.send(mine, each)))["data"][0] for each in brought]
        custom = {"type": "user.custom_tool_result", "custom_tool_use_id": own.id, "content": []}
        first.append((await ok(place.send(mine, custom)))["data"][0])
        for order in ([3, 1], [2, 0, 1]):
            again = [[*brought, custom][i] for i in order]
            answer = await ok(place.send(mine, *again))
            assert [each["id"] for each in answer["data"]] == [first[i]["id"] for i in order]
        another = {**custom, "is_error": True}
        error_of(await place.send(mine, another), 400)
        error_of(await place.send(mine, *[custom] * 101), 400)


async def test_a_custom_tool_may_be_a_workers(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        call = new_draft("agent.custom_tool_use", name="now", input={})
        await place.wait(call, kind=["custom_tool"])
        _, mine = await place.claimed()
        # It has no answer any more: a worker that has the tool must not run it when it looks again.
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        [closed] = await place.events("user.custom_tool_result")
        assert (closed["custom_tool_use_id"], closed["closed"]) == (call.id, "interrupted")
        late = {"type": "user.custom_tool_result", "custom_tool_use_id": call.id, "content": []}
        assert (await ok(place.send(mine, late)))["data"][0]["id"] == closed["id"]


async def test_a_call_that_is_asked_about_is_a_workers_once_it_is_allowed(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        allowed, denied = bash("a"), bash("b")
        await place.wait(allowed, denied, kind="gated_tool")
        _, mine = await place.claimed()
        error = error_of(await place.send(mine, place.result(allowed, "too early")), 400)
        assert error["details"]["error_code"] == "wrong_answer"
        answer = {"type": "user.tool_confirmation", "tool_use_id": allowed.id, "result": "allow"}
        admin = place.roost.client
        changed = {**answer, "modified_input": {"command": "c"}}
        error_of(await place.send(admin, changed), 400)
        await ok(place.send(admin, answer))
        refused = {**answer, "tool_use_id": denied.id, "result": "deny"}
        await ok(place.send(admin, refused))
        state = (await place.roost.store.sessions.find(place.session["id"])).state
        assert state.pending == (Pending(allowed.id, "tool"),)
        await ok(place.send(mine, place.result(allowed, "ran")))
        state = (await place.roost.store.sessions.find(place.session["id"])).state
        assert (state.pending, state.status) == ((), "running")


@pytest.mark.parametrize("how", ["archived", "failed"])
async def test_what_a_worker_was_to_run_is_closed_with_its_session(tmp_path: Path, how: str):
    async with self_hosted(tmp_path) as place:
        call = bash()
        if how == "archived":
            await place.wait(call)
            item, mine = await place.claimed()
            await place.roost.post(f"/v1/sessions/{place.session['id']}/archive")
        else:
            lease = await place.begin(call)
            item, mine = await place.claimed()
            await place.roost.store.log.append(lease, Batch(move=Move.END))
        last = (await place.events())[-3:]
        assert [event["type"] for event in last] == [
            "user.tool_result",
            "session.thread_status_terminated",
            "session.status_terminated",
        ]
        assert (last[0]["tool_use_id"], last[0]["closed"]) == (call.id, "session_ended")
        beat = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        assert (beat["state"], beat["lease_extended"]) == ("stopped", False)
        assert await place.poll() is None


async def test_a_token_that_is_over_brings_results_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        item, mine = await place.claimed()
        following: list[int] = []
        path = f"/v1/sessions/{place.session['id']}"

        async def follow() -> None:
            answer = await mine.get(f"{path}/events/stream")
            following.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            with anyio.fail_after(60):
                while len(place.roost.deps.streams) == 0:  # noqa: ASYNC110 - nobody tells
                    await anyio.sleep(0.01)
            await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))
        assert following == [200], "what it has open ends with the item"
        # It is offered again at once. What the first worker holds opens the session no more.
        for refused in (path, f"{path}/events", f"{path}/events/stream"):
            error_of(await mine.get(refused), 403)
        await ok(place.send(mine, place.result(call, "done")))
        await place.roost.rest(place.session)
        call = bash()
        await place.wait(call)
        second, other = await place.claimed()
        await ok(other.post(place.at(second["id"], "stop"), json={"force": True}))
        error_of(await place.send(mine, place.result(call, "done")), 401)
        await ok(place.send(other, place.result(call, "done")))
        monkeypatch.setattr("roost.domain.work_item.LATE", 0)
        error_of(await place.send(other, place.result(call, "done")), 401)
        await place.wait(bash())
        error_of(await place.send(other, place.result(call, "done")), 401)


async def test_an_older_claim_takes_nothing(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        first = await place.poll()
        second = await place.poll(reclaim_older_than_ms=0)
        old, new = (client_of(place.roost.app, token_of(each)) for each in (first, second))
        error_of(await old.post(place.at(first["id"], "ack")), 409)
        assert (await place.roost.get(place.at(second["id"])))["state"] == "queued"
        await ok(new.post(place.at(second["id"], "ack")))
        await ok(new.post(place.at(second["id"], "ack")))


@pytest.mark.parametrize("lost", ["unacknowledged", "silent"])
async def test_a_key_alone_does_not_reach_an_item_that_is_anothers_by_now(
    tmp_path: Path, lost: str
):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash(name="read"))
        first = await place.poll()
        if lost == "silent":
            await ok(place.worker.post(place.at(first["id"], "ack")))
            query = {**FIRST, "desired_ttl_seconds": 1}
            await ok(place.worker.post(place.at(first["id"], "heartbeat"), params=query))
        second = None
        with anyio.fail_after(60):
            while second is None:
                await anyio.sleep(0.05)
                second = await place.poll(reclaim_older_than_ms=0)
        await ok(place.worker.post(place.at(second["id"], "ack")))
        await ok(place.worker.post(place.at(second["id"], "heartbeat"), params=FIRST))
        # The first one is back, and has the same key.
        stale = place.at(first["id"])
        error_of(await place.worker.post(f"{stale}/heartbeat", params=FIRST), 412)
        for act in ("ack", "stop"):
            error_of(await place.worker.post(f"{stale}/{act}", json={}), 409)
        error_of(await place.worker.post(f"{stale}/stop", json={"force": True}), 409)
        assert (await place.roost.get(place.at(second["id"])))["state"] == "active"


async def test_a_lost_worker_is_noticed_wherever_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        asked: list[str] = []
        due = place.roost.store.catalog.due

        async def noted(kind: str, before: int, *, limit: int) -> Any:
            asked.append(kind)
            return await due(kind, before, limit=limit)

        item, mine = await place.claimed(desired_ttl_seconds=1)
        await place.roost.post(f"/v1/environments/{place.environment['id']}/archive")
        monkeypatch.setattr(place.roost.store.catalog, "due", noted)
        with anyio.fail_after(60):
            while (await place.item())["state"] == "active":
                await place.items.sweep()
                await anyio.sleep(0.05)
        assert set(asked) == {"work_watch"}, "one question, however many environments there are"
        assert [each["closed"] for each in await place.events("user.tool_result")] == [
            "worker_lost"
        ]
        # What it has is taken away before anything is said of its calls.
        error_of(await mine.post(place.at(item["id"], "heartbeat"), params=FIRST), 412)
        error_of(await mine.post(place.at(item["id"], "stop"), json={"force": True}), 409)


async def test_a_worker_that_is_taken_away_from_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        item, mine = await place.claimed(desired_ttl_seconds=1)
        intake, answers = place.roost.deps.services[Intake], []

        async def meanwhile(*given: Any) -> Any:
            """Its worker is there again just when its calls are closed."""
            answers.append(await mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
            stop = place.at(item["id"], "stop")
            answers.extend([await each.post(stop, json={}) for each in (mine, place.worker)])
            return await accept(*given)

        accept = intake.accept
        monkeypatch.setattr(intake, "accept", meanwhile)
        with anyio.fail_after(60):
            while not answers:
                await place.items.sweep()
                await anyio.sleep(0.05)
        assert [answer.status_code for answer in answers] == [412, 409, 409]
        assert (await place.item())["state"] == "queued"


@pytest.mark.parametrize("who", ["poll", "sweep"])
async def test_an_item_that_goes_while_its_worker_is_lost_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        await place.claimed(desired_ttl_seconds=1)
        intake, gone = place.roost.deps.services[Intake], []

        async def meanwhile(*given: Any) -> Any:
            await place.items.forget(TENANT, place.environment["id"])
            gone.append(True)
            return await accept(*given)

        accept = intake.accept
        monkeypatch.setattr(intake, "accept", meanwhile)
        with anyio.fail_after(60):
            while not gone:
                await anyio.sleep(0.05)
                await (place.poll() if who == "poll" else place.items.sweep())


async def test_an_item_that_nobody_has_is_stopped_without_a_word(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item = await place.poll()
        await place.roost.post(place.at(item["id"], "stop"), {"force": True})
        assert await place.events("user.tool_result") == [], "no worker has begun it"
        # A worker that was never heard of need not be asked: it stops the item itself.
        second = await place.poll()
        await ok(place.worker.post(place.at(second["id"], "ack")))
        stopped = await ok(place.worker.post(place.at(second["id"], "stop"), json={}))
        assert stopped["state"] == "stopped"
        third = await place.poll()
        assert third["id"] not in (item["id"], second["id"])
        # Neither need one that sends the heartbeats itself; one that has handed the item on does not end it.
        await ok(place.worker.post(place.at(third["id"], "ack")))
        mine = client_of(place.roost.app, token_of(third))
        beat = await ok(mine.post(place.at(third["id"], "heartbeat"), params=FIRST))
        asked = await ok(place.worker.post(place.at(third["id"], "stop"), json={}))
        assert asked["state"] == "stopping"
        following = {"expected_last_heartbeat": beat["last_heartbeat"]}
        await ok(place.worker.post(place.at(third["id"], "heartbeat"), params=following))
        stopped = await ok(place.worker.post(place.at(third["id"], "stop"), json={}))
        assert stopped["state"] == "stopped"


async def test_an_item_goes_with_its_session(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item, _ = await place.claimed(desired_ttl_seconds=1)
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        await place.roost.client.delete(f"/v1/sessions/{place.session['id']}")
        with anyio.fail_after(60):
            while (await place.roost.client.get(place.at(item["id"]))).status_code == 200:
                await place.items.sweep()
                await anyio.sleep(0.05)
        assert await place.roost.store.catalog.due("work_watch", 2**62, limit=9) == []


async def test_an_interrupt_closes_what_a_worker_was_to_run(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call)
        _, mine = await place.claimed()
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        [closed] = await place.events("user.tool_result")
        assert (closed["tool_use_id"], closed["closed"]) == (call.id, "interrupted")
        late = await ok(place.send(mine, place.result(call, "done")))
        assert late["data"][0]["id"] == closed["id"]
        # While a turn runs, its runner closes it.
        second = bash()
        lease = await place.begin(second)
        session = await place.roost.store.sessions.find(place.session["id"])
        await place.roost.store.log.append(
            lease, Batch(unblocks=[p.event_id for p in session.state.pending])
        )
        assert [e["tool_use_id"] for e in await place.events("user.tool_result")] == [
            call.id,
            second.id,
        ]


async def test_a_worker_may_do_its_work_and_nothing_else(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        other = await place.roost.environment(name="other", config={"type": "self_hosted"})
        elsewhere = await place.roost.session(environment_id=other["id"])
        await place.wait(bash())
        item = await place.poll()
        token = client_of(place.roost.app, token_of(item))
        session = f"/v1/sessions/{place.session['id']}"
        for client in (place.worker, token):
            for path in (session, f"{session}/events", place.at(item["id"])):
                assert (await client.get(path)).status_code == 200
            path = f"/v1/sessions/{elsewhere['id']}"
            error_of(await client.get(path), 404)
            error_of(await place.send(client, message("hello")), 403)
            error_of(await client.get(f"/v1/environments/{other['id']}/work/stats"), 403)
        skill = (await place.roost.skill())["id"]
        assert (await place.worker.get(f"/v1/skills/{skill}/versions/1")).status_code != 403
        error_of(await token.get(f"/v1/skills/{skill}/versions/1"), 404)
        both = client_of(place.roost.app, place.roost.client.headers["x-api-key"])
        both.headers["authorization"] = place.worker.headers["authorization"]
        for _ in range(2):  # whoever is known by then
            await place.roost.get("/v1/environments")
            error_of(await both.get("/v1/environments"), 403)
        error_of(await token.get(place.at("poll")), 403)
        error_of(await place.roost.client.get(place.at("poll")), 403)
        served = [each for each in OPERATIONS if each.served and not each.open]
        workers = place.roost.deps.services[WorkerAccess]
        scope = await workers.recognise(place.worker.headers)
        assert scope is not None
        refused = 0
        for operation in served:
            try:
                await workers.check(scope, operation.name, {})
            except Exception as error:  # noqa: BLE001 - looked at below
                refused += 1
                assert "may not do that" in str(error)
        assert len(served) - refused == 12
        # Once its key is revoked, neither opens anything.
        keys = f"/roost/v1/environments/{place.environment['id']}/keys"
        listed = await place.roost.get(keys)
        assert "secret" not in listed["data"][0]
        await place.roost.client.delete(f"{keys}/{place.key['id']}")
        for client in (place.worker, token):
            error_of(await client.get(session), 401)
        for wrong in ("roost_env_none.x", "roost_work_none", f"{place.key['secret']}x"):
            error_of(await client_of(place.roost.app, wrong).get(session), 401)


async def test_what_belongs_to_an_environment_goes_with_it(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        cloud = await place.roost.environment(name="cloud")
        for path in (
            f"/v1/environments/{cloud['id']}/work/stats",
            f"/roost/v1/environments/{cloud['id']}/keys",
        ):
            assert "not self-hosted" in error_of(await place.roost.client.get(path), 400)["message"]
        await place.wait(bash())
        await place.poll()
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        await place.roost.client.delete(f"/v1/sessions/{place.session['id']}")
        answer = await place.roost.client.delete(f"/v1/environments/{place.environment['id']}")
        assert answer.status_code == 200, answer.text
        error_of(await place.worker.get(place.at("poll")), 401)


async def test_the_official_client_knows_a_lost_lease_by_name(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item, _ = await place.claimed()
        transport = httpx2.ASGITransport(place.roost.app)
        async with anthropic.AsyncAnthropic(
            base_url="http://roost",
            auth_token=place.key["secret"],
            http_client=httpx2.AsyncClient(transport=transport),
            max_retries=0,
        ) as client:
            work = client.beta.environments.work
            with pytest.raises(types.BetaHeartbeatPreconditionFailedError) as lost:
                await work.heartbeat(
                    item["id"],
                    environment_id=place.environment["id"],
                    expected_last_heartbeat=str(time.time()),
                )
            assert lost.value.details.current_state.state == "active"


async def test_items_of_an_older_server_do_not_stay(tmp_path: Path):
    """They have no watch, and do not say which claim has ended."""
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item, mine = await place.claimed()
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))
        catalog, kind = place.roost.store.catalog, f"work:{place.environment['id']}"
        [record] = await catalog.due(kind, 2**62, limit=9)
        old = {k: v for k, v in record.body.items() if k not in ("ended_claim", "ended_at")}
        await catalog.change(kind, TENANT, record.id, lambda _: old)
        error_of(await mine.get(f"/v1/sessions/{place.session['id']}"), 403)
        await catalog.change(kind, TENANT, record.id, lambda _: {**old, "stopped_at": 1}, due_at=1)
        assert await place.poll() is None
        assert await catalog.due(kind, 2**62, limit=9) == []


async def test_a_lease_of_an_older_server_is_looked_at_once_a_server_starts(tmp_path: Path):
    async with self_hosted(tmp_path, work_lease_seconds=1) as place:
        await place.wait(bash())
        item, _ = await place.claimed()
        catalog = place.roost.store.catalog
        [watched] = await catalog.due("work_watch", 2**62, limit=9)
        for is_there in (True, False):
            await place.items.watch_all()
            [now] = await catalog.due("work_watch", 2**62, limit=9)
            if is_there:
                assert now == watched, "it is looked at anyway"
                await catalog.delete("work_watch", TENANT, watched.id)
        with anyio.fail_after(60):
            while (await place.item())["state"] == "active":
                await place.items.sweep()
                await anyio.sleep(0.05)
        assert (await place.item())["id"] != item["id"]


async def given_back(place: Place) -> None:
    """A worker claims the item, and gives it back."""
    item, mine = await place.claimed()
    await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))


async def test_who_waits_for_a_permission_alone_is_offered_again_when_it_is_given(tmp_path: Path):
    async with self_hosted(tmp_path) as place:
        call = bash()
        await place.wait(call, kind="gated_tool")
        await given_back(place)
        assert (await place.item())["state"] == "stopped"
        assert await place.poll() is None
        answer = {"type": "user.tool_confirmation", "tool_use_id": call.id, "result": "allow"}
        await ok(place.send(place.roost.client, answer))
        # The permission begins a turn.
        await place.items.want(await place.roost.store.sessions.find(place.session["id"]))
        await given_back(place)
        assert await place.poll() is not None, "the call is still to be made"


async def test_who_waits_for_a_custom_tool_alone_is_offered_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        await place.wait(
            new_draft("agent.custom_tool_use", name="now", input={}), kind=["custom_tool"]
        )
        pauses, ahead = [], 0
        monkeypatch.setattr(
            "roost.core.work.work_items._now", lambda: time.time_ns() // 1000 + ahead * 1_000_000
        )
        for _ in range(8):
            await given_back(place)
            began = ahead
            while not (await place.roost.get(place.at("stats")))["depth"]:
                ahead += 30
            pauses.append((ahead - began) / 60)
        assert pauses == [0, 1, 2, 4, 8, 16, 16, 16]
        await given_back(place)
        assert await place.poll() is None
        await place.items.want(await place.roost.store.sessions.find(place.session["id"]))
        for _ in range(2):
            await given_back(place)
        assert await place.poll() is None, "it was offered at once, and once more"


def test_a_claim_of_an_older_server_holds():
    about = {"name": "sesn_1", "environment_id": "env_1", "created_at": 1, "lease": 1, "claim": 2}
    assert WorkItem.of({**about, "claimed_at": 1}).standing_of(2, 2) == "has"
    assert WorkItem.of({**about, "state": "active", "claimed_at": 1}).standing_of(2, 2) == "has"
    assert WorkItem.of(about).standing_of(2, 2) == "had"


async def test_an_item_that_a_turn_wants_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item, mine = await place.claimed()
        await ok(place.send(place.roost.client, {"type": "user.interrupt"}))
        await ok(mine.post(place.at(item["id"], "stop"), json={"force": True}))
        monkeypatch.setattr("roost.domain.work_item.KEPT", 0)
        catalog, turns = place.roost.store.catalog, []
        [watched] = await catalog.due("work_watch", 2**62, limit=9)
        await catalog.change("work_watch", TENANT, watched.id, lambda r: r.body, due_at=1)

        async def meanwhile(*which: Any, **given: Any) -> None:
            if not turns:
                turns.append(await place.begin(bash()))
            await delete(*which, **given)

        delete = catalog.delete
        monkeypatch.setattr(catalog, "delete", meanwhile)
        await place.items.sweep()
        assert len(turns) == 1
        assert (await place.item())["state"] == "queued"
        assert len(await catalog.due("work_watch", 2**62, limit=9)) == 1


async def test_a_forced_stop_does_not_reach_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with self_hosted(tmp_path) as place:
        await place.wait(bash())
        item, _ = await place.claimed()
        intake, following = place.roost.deps.services[Intake], []

        async def meanwhile(*given: Any) -> Any:
            """Another node sees that the item was taken away, and hands it on."""
            accepted = await accept(*given)
            if not following:
                assert await place.poll() is None, "it is seen to first"
                following.append(await place.claimed())
            return accepted

        accept = intake.accept
        monkeypatch.setattr(intake, "accept", meanwhile)
        stopped = await place.roost.post(place.at(item["id"], "stop"), {"force": True})
        assert (stopped["id"], stopped["state"]) == (item["id"], "stopped")
        assert (await place.item())["id"] == following[0][0]["id"]
        assert (await place.item())["state"] == "active"


async def test_a_lease_that_gets_shorter_is_looked_at_in_time(tmp_path: Path):
    async with self_hosted(tmp_path, work_lease_seconds=60) as place:
        await place.wait(bash())
        item, mine = await place.claimed(desired_ttl_seconds=3600)
        catalog, now = place.roost.store.catalog, time.time_ns() // 1000
        [watched] = await catalog.due("work_watch", 2**62, limit=9)
        at = now + 3600 * 1_000_000  # as a sweep has put it off
        await catalog.change("work_watch", TENANT, watched.id, lambda r: r.body, due_at=at)
        # The next heartbeat asks for nothing: the lease is the server's again.
        beat = await ok(mine.post(place.at(item["id"], "heartbeat"), params=FIRST))
        assert beat["ttl_seconds"] == 60
        [watched] = await catalog.due("work_watch", 2**62, limit=9)
        assert watched.due_at is not None
        assert watched.due_at < at - 1000 * 1_000_000
