"""Events over HTTP: sent, listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic.types.beta.sessions import (
    BetaManagedAgentsSendSessionEvents,
    BetaManagedAgentsSessionEvent,
)
from tests.api.api_server import HEADERS, api_server, error_of, message, messages, official

from roost.core.read.large_events import EventPages
from roost.domain.ledger import Batch
from roost.domain.session import Pending
from roost.ports.drafts import new_draft


async def test_an_input_is_answered_with_its_place_in_the_log(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        answer = await roost.say(session, "Hello", "Again")
        official(BetaManagedAgentsSendSessionEvents, answer)
        first, second = answer["data"]
        assert first["id"].startswith("sevt_")
        assert first["processed_at"] is None
        assert first["content"] == [{"type": "text", "text": "Hello"}]
        assert (first["seq"], second["seq"]) == (1, 2)
        assert (await roost.get(f"/v1/sessions/{session['id']}"))["status"] == "running"


async def test_a_listing_shows_each_event_once_in_order(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        [sent] = (await roost.say(session, "Hello"))["data"]
        await roost.rest(session)
        events = (await roost.get(path))["data"]
        for event in events:
            official(BetaManagedAgentsSessionEvent, event)
        assert [e["type"] for e in events] == [
            "session.status_running",
            "session.thread_status_running",
            "user.message",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert events[2]["id"] == sent["id"]
        assert events[2]["processed_at"] is not None
        assert [e["seq"] for e in events] == [2, 3, 4, 5, 6, 7]
        assert (await roost.get(path, order="desc"))["data"] == events[::-1]
        idle = await roost.get(path, **{"types[]": ["session.status_idle", "user.message"]})
        assert [e["type"] for e in idle["data"]] == ["user.message", "session.status_idle"]


async def test_pages_of_events_join_without_gap_or_overlap(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        await roost.say(session, *[str(i) for i in range(10)])
        for order in ("asc", "desc"):
            whole = (await roost.get(path, order=order))["data"]
            seen: list[Any] = []
            page: dict[str, Any] = {}
            while True:
                answer = await roost.get(path, order=order, limit=3, **page)
                seen += answer["data"]
                if order == "desc":
                    await roost.say(session, "meanwhile")  # newer than the picture
                if answer["next_page"] is None:
                    break
                page = {"page": answer["next_page"]}
            assert seen == whole


async def test_events_are_found_by_time(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        await roost.say(session, "x")
        await roost.rest(session)
        events = (await roost.get(path))["data"]
        middle = events[2]["processed_at"]
        before = (await roost.get(path, **{"created_at[lt]": middle}))["data"]
        since = (await roost.get(path, **{"created_at[gte]": middle}))["data"]
        assert before + since == events
        assert (await roost.get(path, **{"created_at[gt]": events[-1]["processed_at"]}))[
            "data"
        ] == []


async def test_an_answer_settles_what_was_asked_once(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        await roost.say(session, "x")
        await roost.store.log.renew("n", 60)
        [lease] = await roost.store.log.claim("n", 1)
        ask = new_draft("agent.custom_tool_use", name="weather", input={})
        await roost.store.log.append(
            lease,
            Batch(
                drafts=[ask],
                takes=await roost.store.log.inputs(session["id"]),
                blocks=[Pending(ask.id, "custom_tool")],
            ),
        )
        await roost.finish(lease)
        result = {
            "type": "user.custom_tool_result",
            "custom_tool_use_id": ask.id,
            "content": [{"type": "text", "text": ""}],
            "is_error": False,
        }
        answer = await roost.post(path, {"events": [result]})
        official(BetaManagedAgentsSendSessionEvents, answer)
        assert answer["data"][0]["processed_at"] is not None
        error = error_of(await roost.client.post(path, json={"events": [result]}), 400)
        assert "not waiting" in error["message"]


IMAGE = {"type": "image", "source": {"type": "base64", "data": "AA==", "media_type": "image/png"}}
TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "events: List should have at least 1 item"),
        ([{}], "events.0.type: Field required"),
        ([{"type": "agent.message"}], "events.0.type: Input should be 'user.message',"),
        ([{"type": "user.message"}], "events.0.content: Field required"),
        (
            [{"type": "user.message", "content": []}],
            "events.0.content: List should have at least 1",
        ),
        (
            [{"type": "user.message", "content": "Hello"}],
            "events.0.content: Input should be an array",
        ),
        ([message("")], "events.0.content.0.text: must not be empty"),
        ([message("x", colour=1)], "events.0.colour: unknown field"),
        (
            [
                {
                    "type": "user.message",
                    "content": [TEXT, {"type": "image", "source": {"type": "ftp"}}],
                }
            ],
            "events.0.content.1.source.type: Input should be 'base64', 'url' or 'file'",
        ),
        ([{"type": "user.message", "content": [{"type": "redacted"}]}], "events.0.content.0.type:"),
        (
            [
                {
                    "type": "user.tool_confirmation",
                    "tool_use_id": "t",
                    "result": "allow",
                    "deny_message": "no",
                }
            ],
            "events.0.deny_message: only allowed when result is 'deny'",
        ),
        (
            [{"type": "user.tool_confirmation", "tool_use_id": "t", "result": "deny"}],
            "tool_use_id: 't' is not waiting",
        ),
        ([{"type": "user.tool_result", "tool_use_id": "t"}], "events.0.type: user.tool_result is"),
        (
            [{"type": "user.interrupt", "session_thread_id": "sthr_x"}],
            "events.0.session_thread_id: this session has no such thread",
        ),
        ([{"type": "system.message", "content": [TEXT]}], "events.0: a system.message is the last"),
        (
            [{"type": "system.message", "content": [TEXT]}, message("x")],
            "events.0: a system.message is the last",
        ),
        ([message("x", client_id="")], "events.0.client_id: String should have at least 1"),
        ([message("x", client_id="i" * 129)], "events.0.client_id: String should have at most 128"),
    ],
)
async def test_what_is_wrong_with_an_input_is_named(tmp_path: Path, events: Any, words: str):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        response = await roost.client.post(
            f"/v1/sessions/{session['id']}/events", json={"events": events}
        )
        assert words in error_of(response, 400)["message"]
        assert (await roost.get(f"/v1/sessions/{session['id']}/events"))["data"] == []


async def test_every_kind_of_content_is_taken(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        document = {"type": "text", "media_type": "text/plain", "data": "d"}
        content = [
            TEXT,
            IMAGE,
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
            {"type": "document", "source": document, "title": None, "context": "c"},
        ]
        events = [
            {"type": "user.message", "content": content},
            {"type": "system.message", "content": [TEXT]},
        ]
        answer = await roost.post(f"/v1/sessions/{session['id']}/events", {"events": events})
        official(BetaManagedAgentsSendSessionEvents, answer)
        assert answer["data"][0]["content"] == content


async def test_an_interrupt_of_nothing_is_shown_as_done(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}"
        [thread] = (await roost.get(f"{path}/threads"))["data"]
        answer = await roost.post(
            f"{path}/events",
            {"events": [{"type": "user.interrupt", "session_thread_id": thread["id"]}]},
        )
        official(BetaManagedAgentsSendSessionEvents, answer)
        assert answer["data"][0]["processed_at"] is not None
        assert (await roost.get(path))["status"] == "idle"


async def test_a_request_repeated_under_its_key_gets_the_first_answer(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        headers = {**HEADERS, "Idempotency-Key": "k"}
        first = await roost.post(path, messages("a", "b"), headers=headers)
        await roost.rest(session)
        assert await roost.post(path, messages("a", "b"), headers=headers) == first
        response = await roost.client.post(path, json=messages("a", "c"), headers=headers)
        assert error_of(response, 409)["details"]["error_code"] == "idempotency_key_reused"
        sent = (await roost.get(path, **{"types[]": "user.message"}))["data"]
        assert [e["content"][0]["text"] for e in sent] == ["a", "b"]
        assert "roost_inputs_accepted_total 2.0" in (await roost.client.get("/metrics")).text


async def test_an_event_repeated_under_its_own_id_is_written_once(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        [first] = (await roost.post(path, messages("a", client_id="c1")))["data"]
        assert first["client_id"] == "c1"
        both = {"events": [message("a", client_id="c1"), message("b", client_id="c2")]}
        again = (await roost.post(path, both))["data"]
        assert again[0] == first
        assert again[1]["client_id"] == "c2"
        response = await roost.client.post(path, json=messages("z", client_id="c1"))
        assert error_of(response, 409)["details"]["error_code"] == "idempotency_key_reused"
        sent = (await roost.get(path, **{"types[]": "user.message"}))["data"]
        assert [e["client_id"] for e in sent] == ["c1", "c2"]


async def test_the_same_id_in_two_sessions_is_two_events(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        ids = set()
        for session in (await roost.session(), await roost.session()):
            path = f"/v1/sessions/{session['id']}/events"
            ids.add((await roost.post(path, messages("a", client_id="c")))["data"][0]["id"])
        assert len(ids) == 2


async def test_a_full_queue_is_refused_aloud(tmp_path: Path):
    async with api_server(tmp_path, max_queued=2) as roost:
        session = await roost.session()
        await roost.say(session, "a", "b")
        path = f"/v1/sessions/{session['id']}/events"
        response = await roost.client.post(path, json=messages("c"))
        assert error_of(response, 429)["details"]["error_code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
        sent = (await roost.get(path, **{"types[]": "user.message"}))["data"]
        assert len(sent) == 2


async def test_a_page_of_large_events_is_short_and_the_next_goes_on(tmp_path: Path):
    """By bytes as well as by count; clients go on by `next_page`, as the official ones do."""
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        for n in range(30):
            await roost.say(session, f"{n} " + "x" * 150_000)
        path = f"/v1/sessions/{session['id']}/events"
        for order in ("asc", "desc"):
            seen: list[Any] = []
            page: dict[str, Any] = {"order": order, "limit": 1000}
            while page:
                answer = await roost.client.get(path, params=page)
                assert len(answer.content) < 1_200_000
                body = answer.json()
                assert body["data"]
                seen += body["data"]
                more = body["next_page"]
                page = {"order": order, "limit": 1000, "page": more} if more else {}
            said = [e["content"][0]["text"] for e in seen if e["type"] == "user.message"]
            numbers = [int(text.split()[0]) for text in said]
            assert numbers == (list(range(30)) if order == "asc" else list(range(29, -1, -1)))


async def test_an_event_that_is_larger_than_a_page_is_shown_alone(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        for size in (10, 3_000_000, 10):
            await roost.say(session, "x" * size)
        path = f"/v1/sessions/{session['id']}/events"
        seen: list[int] = []
        page = await roost.get(path)
        while True:
            seen += [len(e["content"][0]["text"]) for e in page["data"] if "content" in e]
            if page["next_page"] is None:
                break
            page = await roost.get(path, page=page["next_page"])
        assert seen == [10, 3_000_000, 10]


async def test_large_events_are_listed_for_a_few_at_a_time(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        large, small = await roost.session(), await roost.session()
        await roost.say(large, "x" * 3_000_000)
        await roost.say(small, "hello")
        places, got = roost.deps.services[EventPages]._large._reading, []

        async def list_large() -> None:
            got.append(await roost.get(f"/v1/sessions/{large['id']}/events"))

        for _ in range(places.value):
            await places.acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(list_large)
            with anyio.fail_after(60):
                while not places.statistics().tasks_waiting:  # noqa: ASYNC110 - nobody is told
                    await anyio.sleep(0.01)
            assert (await roost.get(f"/v1/sessions/{small['id']}/events"))["data"]
            assert not got
            places.release()
        assert len(got[0]["data"][0]["content"][0]["text"]) == 3_000_000


async def test_listings_of_large_things_are_bounded_by_bytes(tmp_path: Path):
    """Agents have up to a megabyte, and each session shows its own."""
    async with api_server(tmp_path) as roost:
        made = [await roost.agent(name=f"a{n}", system="x" * 90_000) for n in range(60)]
        agent = made[0]["id"]
        sessions = [(await roost.session(agent=agent))["id"] for _ in range(60)]
        wanted = {"/v1/agents": [a["id"] for a in made][::-1], "/v1/sessions": sessions[::-1]}
        for path, ids in wanted.items():
            seen: list[str] = []
            params: dict[str, Any] = {"limit": 100}
            pages = []
            while params:
                answer = await roost.client.get(path, params=params)
                assert len(answer.content) < 4_500_000
                pages.append(answer.json())
                seen += [each["id"] for each in pages[-1]["data"]]
                more = pages[-1]["next_page"]
                params = {"limit": 100, "page": more} if more else {}
            assert seen == ids
            assert len(pages) > 1
        back = pages[-1]["prev_page"]
        earlier: list[str] = []
        while back:
            page = (
                await roost.client.get("/v1/sessions", params={"limit": 100, "page": back})
            ).json()
            earlier = [each["id"] for each in page["data"]] + earlier
            back = page["prev_page"]
        assert earlier + [each["id"] for each in pages[-1]["data"]] == sessions[::-1]


async def test_a_key_that_is_too_long_is_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}/events"
        body = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "a"}]}]}
        long = {"idempotency-key": "x" * 256}
        assert (
            "idempotency-key"
            in error_of(await roost.client.post(path, json=body, headers=long), 400)["message"]
        )
