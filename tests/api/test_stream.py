"""Event streams, on a real port."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anthropic
import anyio
import anyio.lowlevel
import httpx2
import pytest
from anthropic.types.beta.sessions import BetaManagedAgentsStreamSessionEvents
from tests.api.api_server import ApiServer, api_server, error_of, message, messages, official

from roost.domain.events import Entry, Preview
from roost.domain.ledger import Batch
from roost.errors import Unavailable
from roost.ports.drafts import new_draft, new_event_id
from roost.serve.connections import Bounds
from roost.serve.http import listening


class Frames:
    """Reads one stream frame by frame; comments are `{"comment": text}`."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def frame(self) -> dict[str, str] | None:
        """The next frame; None at the end."""
        found: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                return found
            name, _, value = line.partition(": ")
            found[name or "comment"] = value
        return None

    async def event(self) -> Any:
        """The next event, past comments; None at the end."""
        with anyio.fail_after(60):
            while (frame := await self.frame()) is not None:
                if "data" in frame:
                    return {**json.loads(frame["data"]), "frame": frame}
        return None

    async def until(self, type: str) -> list[Any]:
        seen = [await self.event()]
        while seen[-1] is not None and seen[-1]["type"] != type:
            seen.append(await self.event())
        return seen


@asynccontextmanager
async def served(
    data: Path, **settings: Any
) -> AsyncGenerator[tuple[ApiServer, httpx2.AsyncClient], None]:
    async with api_server(data, **settings) as roost, listening(roost.app, "127.0.0.1", 0) as url:
        headers = dict(roost.client.headers)
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
            yield roost, client
        roost.deps.streams.close()


@asynccontextmanager
async def stream(
    client: httpx2.AsyncClient, session: Any, headers: dict[str, str] | None = None, **params: Any
) -> AsyncIterator[Frames]:
    path = f"/v1/sessions/{session['id']}/events/stream"
    async with client.stream("GET", path, params=params, headers=headers) as response:
        assert response.status_code == 200
        yield Frames(response)


async def test_a_stream_shows_events_as_official_frames(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        async with stream(client, session) as frames:
            headers = frames.response.headers
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["cache-control"] == "no-cache"
            assert headers["x-accel-buffering"] == "no"
            assert headers["request-id"].startswith("req_")
            await roost.say(session, "Hello")
            seen = await frames.until("session.thread_status_running")
            assert [e["type"] for e in seen] == [
                "user.message",
                "session.status_running",
                "session.thread_status_running",
            ]
            assert [e["frame"]["id"] for e in seen] == ["1", "2", "3"]
            assert {e["frame"]["event"] for e in seen} == {"message"}
            for event in seen:
                official(BetaManagedAgentsStreamSessionEvents, json.loads(event["frame"]["data"]))


async def test_a_stream_stays_open_across_turns_and_is_quiet_but_alive(tmp_path: Path):
    async with served(tmp_path, heartbeat_seconds=0.05) as (roost, client):
        session = await roost.session()
        async with stream(client, session) as frames:
            for text in ("one", "two"):
                await roost.say(session, text)
                await roost.rest(session)
                assert (await frames.until("session.status_idle"))[-1] is not None
            with anyio.fail_after(60):
                while "comment" not in (await frames.frame() or {}):
                    pass


async def test_who_sends_first_and_then_opens_the_stream_misses_nothing(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        await roost.say(session, "Hello")
        await roost.rest(session)
        async with stream(client, session) as frames:
            seen = await frames.until("session.status_idle")
            assert seen[0]["type"] == "user.message"
            await roost.say(session, "Watched")
            await roost.rest(session)
            await frames.until("session.status_idle")
        async with stream(client, session) as frames:
            await roost.say(session, "Next")
            assert (await frames.event())["content"][0]["text"] == "Next"


@pytest.mark.parametrize("by", ["header", "query", "both"])
async def test_a_stream_resumes_exactly_after_the_last_frame_seen(tmp_path: Path, by: str):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        await roost.say(session, "Hello")
        await roost.rest(session)
        headers = {"Last-Event-ID": "3"} if by != "query" else {}
        params = {"after": {"query": 3, "both": 1}[by]} if by != "header" else {}
        async with stream(client, session, headers, **params) as frames:
            seen = await frames.until("session.status_idle")
            assert [e["frame"]["id"] for e in seen] == ["4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("headers", "params", "words"),
    [
        ({"Last-Event-ID": "sevt_1"}, {}, "last-event-id: give the `id` of a frame"),
        ({"Last-Event-ID": "99"}, {}, "the session's log ends at 0, before 99"),
        ({}, {"after": "-1"}, "after: Input should be a valid integer"),
        ({}, {"after": "99"}, "the session's log ends at 0"),
        (
            {},
            {"event_deltas[]": "agent.tool_use"},
            "event_deltas.0: Input should be 'agent.message'",
        ),
        (
            {},
            {"event_deltas[]": ["agent.message"] * 101},
            "event_deltas: List should have at most 100",
        ),
        ({}, {"colour": "red"}, "colour: unknown query parameter"),
    ],
)
async def test_a_stream_that_cannot_be_is_refused_before_it_opens(
    tmp_path: Path, headers: dict[str, str], params: Any, words: str
):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        response = await roost.client.get(
            f"/v1/sessions/{session['id']}/events/stream", headers=headers, params=params
        )
        assert words in error_of(response, 400)["message"]


async def test_a_key_has_no_more_streams_open_than_the_operator_allows(tmp_path: Path):
    async with served(tmp_path, max_streams=1) as (roost, client):
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events/stream"
        async with stream(client, session):
            refused = await client.get(path)
            error = error_of(refused, 429)
            assert error["details"]["error_code"] == "too_many_streams"
            _, secret = await roost.keyring.create(tenant="tenant_1", name="another", sees="tenant")
            client.headers["x-api-key"] = secret
            async with stream(client, session):
                assert len(roost.deps.streams) == 2
        with anyio.fail_after(60):
            while len(roost.deps.streams):  # noqa: ASYNC110 - the server notices by itself
                await anyio.sleep(0.01)
        async with stream(client, session):
            pass


async def test_previews_come_before_their_event_and_only_if_asked_for(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        await roost.say(session, "Hello")
        await roost.store.log.renew("n", 60)
        [lease] = await roost.store.log.claim("n", 1)
        head = (await roost.store.sessions.find(session["id"])).state.head
        answer = new_draft("agent.message", content=[{"type": "text", "text": "Hi!"}])
        async with (
            stream(client, session, after=head, **{"event_deltas[]": "agent.message"}) as eager,
            stream(client, session, after=head) as plain,
        ):
            # The first comment says that both are listening.
            await eager.frame()
            await plain.frame()
            for text in ("", "Hi", "!"):
                roost.notifier.publish(
                    session["id"], Preview(answer.id, "agent.message", text, head)
                )
            start, one, two = [await eager.event() for _ in range(3)]
            assert start["event"] == {"type": "agent.message", "id": answer.id}
            assert [e["delta"]["content"]["text"] for e in (one, two)] == ["Hi", "!"]
            assert one["event_id"] == answer.id
            assert "id" not in start["frame"]
            for event in (start, one, two):
                official(BetaManagedAgentsStreamSessionEvents, json.loads(event["frame"]["data"]))
            takes = await roost.store.log.inputs(session["id"])
            await roost.store.log.append(lease, Batch(drafts=[answer], takes=takes))
            roost.notifier.notify(session["id"])
            assert (await eager.until("agent.message"))[-1]["id"] == answer.id
            shown = await plain.until("agent.message")
            assert {e["type"] for e in shown} == {"user.message", "agent.message"}


async def test_of_thinking_only_its_beginning_is_shown(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        async with stream(client, session, **{"event_deltas[]": "agent.thinking"}) as frames:
            await frames.frame()
            for text in ("", "hmm"):
                roost.notifier.publish(session["id"], Preview("sevt_t", "agent.thinking", text, 0))
            # Previews do not go through the log: only one that has come is before what is said now.
            assert (await frames.event())["type"] == "event_start"
            await roost.say(session, "x")
            assert (await frames.event())["type"] == "user.message"


async def test_a_stream_ends_with_its_session(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        archived, deleted = await roost.session(), await roost.session()
        async with stream(client, archived) as frames:
            await roost.post(f"/v1/sessions/{archived['id']}/archive")
            seen = await frames.until("session.status_terminated")
            assert seen[-1] is not None
            assert await frames.event() is None
        async with stream(client, deleted) as frames:
            await roost.client.delete(f"/v1/sessions/{deleted['id']}")
            end = await frames.event()
            assert end["type"] == "session.deleted"
            official(BetaManagedAgentsStreamSessionEvents, json.loads(end["frame"]["data"]))
            assert await frames.event() is None


async def test_the_stream_of_an_ended_session_shows_the_rest_and_ends(tmp_path: Path):
    async with served(tmp_path, catch_up_seconds=0) as (roost, client):
        session = await roost.session()
        await roost.say(session, "x")
        await roost.rest(session)
        await roost.post(f"/v1/sessions/{session['id']}/archive")
        async with stream(client, session) as frames:
            assert await frames.event() is None
        async with stream(client, session, after=0) as frames:
            assert (await frames.until("session.status_terminated"))[-1] is not None
            assert await frames.event() is None


async def test_the_primary_thread_streams_what_the_session_does(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        [thread] = (await roost.get(f"/v1/sessions/{session['id']}/threads"))["data"]
        path = f"/v1/sessions/{session['id']}/threads/{thread['id']}/stream"
        params = {"event_deltas[]": "agent.message"}
        async with client.stream("GET", path, params=params) as response:
            frames = Frames(response)
            await roost.say(session, "x")
            assert (await frames.event())["type"] == "user.message"
            head = (await roost.store.sessions.find(session["id"])).state.head
            preview = Preview(new_event_id(), "agent.message", "", head)
            roost.notifier.publish(session["id"], preview)
            assert (await frames.until("event_start"))[-1]["event"]["id"] == preview.event_id


async def test_many_readers_each_see_everything(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        seen: dict[int, list[str]] = {}

        async def read(reader: int, *, task_status: Any) -> None:
            async with stream(client, session) as frames:
                task_status.started()
                seen[reader] = [e["frame"]["id"] for e in await frames.until("session.status_idle")]

        async with anyio.create_task_group() as tasks:
            for reader in range(10):
                await tasks.start(read, reader)
            assert len(roost.deps.streams) == 10
            await roost.post(f"/v1/sessions/{session['id']}/events", messages(*"abcdefgh"))
            await roost.rest(session)
        assert all(ids == seen[0] for ids in seen.values())
        assert seen[0] == [str(i + 1) for i in range(len(seen[0]))]


async def test_a_reader_that_leaves_is_noticed_at_once(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        async with stream(client, session):
            assert len(roost.deps.streams) == 1
            assert "roost_open_streams 1.0" in (await client.get("/metrics")).text
        with anyio.fail_after(60):
            while len(roost.deps.streams):
                await anyio.lowlevel.checkpoint()
        assert session["id"] not in roost.notifier._subscribers


async def test_a_stopping_server_ends_its_streams(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        async with stream(client, session) as frames:
            roost.stopping = True
            roost.deps.streams.close()
            assert await frames.event() is None
        response = await client.get(f"/v1/sessions/{session['id']}/events/stream")
        assert error_of(response, 503)["type"] == "api_error"
        assert int(response.headers["retry-after"]) >= 1


async def test_a_failure_mid_stream_is_told_in_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()

        async def broken(*_: object) -> list[Entry]:
            raise OSError("disk on fire")

        monkeypatch.setattr(roost.store.log, "read", broken)
        async with stream(client, session) as frames:
            failure = await frames.event()
            assert failure["frame"]["event"] == "error"
            assert failure["error"]["type"] == "api_error"
            assert "fire" not in failure["frame"]["data"]
            assert failure["request_id"] == frames.response.headers["request-id"]
            assert await frames.event() is None


async def test_a_refusal_mid_stream_keeps_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()

        async def full(*_: object) -> list[Entry]:
            raise Unavailable("the disk is full")

        monkeypatch.setattr(roost.store.log, "read", full)
        async with stream(client, session) as frames:
            failure = await frames.event()
            assert failure["error"]["message"] == "the disk is full"
            assert failure["error"]["details"]["error_code"] == "unavailable"


async def test_a_slow_reader_does_not_hold_the_others_up(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        async with stream(client, session), stream(client, session) as quick:
            big = message("x" * 100_000)
            for _ in range(20):  # two megabytes that one of them does not read
                await roost.post(f"/v1/sessions/{session['id']}/events", {"events": [big]})
            count = 0
            while count < 20:
                count += (await quick.event())["type"] == "user.message"


async def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path):
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        key = await roost.post("/roost/v1/keys", {"name": "leaked", "sees": "tenant"})
        theirs = {"x-api-key": key["secret"]}
        async with stream(client, session, theirs) as leaked, stream(client, session) as other:
            await roost.client.delete(f"/roost/v1/keys/{key['id']}")
            await roost.say(session, "not for everybody")
            assert await leaked.event() is None
            assert (await other.event())["type"] == "user.message"


async def test_the_official_client_goes_on_after_short_pages(tmp_path: Path):
    """A page that is short because of its bytes is no end; `next_page` is what counts."""
    async with served(tmp_path) as (roost, client):
        session = await roost.session()
        for n in range(20):
            await roost.say(session, f"{n} " + "x" * 150_000)
        secret = roost.client.headers["x-api-key"]
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key=secret) as sdk:
            listed = [event async for event in sdk.beta.sessions.events.list(session["id"])]
        said = [event.content[0].text.split()[0] for event in listed if "content" in dir(event)]
        assert said == [str(n) for n in range(20)]


async def test_a_stream_that_nobody_reads_ends_and_goes_on_exactly_where_it_was(tmp_path: Path):
    """What a slow reader costs meanwhile is a page of the log, not the log."""
    bounds = Bounds(unread_seconds=0.5)
    held: list[int] = []
    async with (
        api_server(tmp_path) as roost,
        listening(roost.app, "127.0.0.1", 0, bounds=bounds) as url,
        httpx2.AsyncClient(base_url=url, headers=dict(roost.client.headers)) as client,
    ):
        session = await roost.session()
        for n in range(200):
            await roost.say(session, f"{n} " + "x" * 100_000)
        real = roost.store.log.read

        async def read(*asked: Any) -> list[Entry]:
            entries = await real(*asked)
            held.append(sum(len(entry.body) for entry in entries))
            return entries

        roost.store.log.read = read  # type: ignore[method-assign]
        seen: list[str] = []
        after, streams = 0, 0
        while len(seen) < 200:
            streams += 1
            async with stream(client, session, after=after) as frames:
                while streams == 1 and roost.deps.streams:  # noqa: ASYNC110 - until it was ended
                    await anyio.sleep(0.05)
                with suppress(httpx2.HTTPError):
                    while len(seen) < 200 and (event := await frames.event()) is not None:
                        after = int(event["frame"]["id"])
                        if event["type"] == "user.message":
                            seen.append(event["content"][0]["text"].split()[0])
        assert seen == [str(n) for n in range(200)]
        assert streams > 1
        assert max(held) < 256 * 1024
        roost.deps.streams.close()
