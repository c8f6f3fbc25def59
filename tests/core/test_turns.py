"""A message through the core: accepted, worked on, followed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from tests.core.node import TENANT, Node, message, node, texts, types
from tests.egress.both_sides import until

from roost.core.read.follow import Follow, Pause
from roost.core.work.leased_log import LeasedLog
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.domain.events import Draft, Entry, Preview
from roost.domain.ledger import Batch
from roost.domain.session import Session, Status
from roost.errors import WorkspaceDeleted
from roost.harnesses.messages_api import Json, MessagesApi
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore
from roost.testing.null_parts import NoWorkspaceQueue
from roost.testing.stage import Stage, answer


def script(*steps: dict[str, object]) -> str:
    return f"SCRIPT{json.dumps(steps)}"


class HeldLog:
    """Holds what is said meanwhile back from the log until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.free = anyio.Event()
        write = LeasedLog.work

        async def work(log: LeasedLog, emit: Emit) -> None:
            if emit.meanwhile:
                await self.free.wait()
            await write(log, emit)

        patch.setattr(LeasedLog, "work", work)

    async def asked(self, roost: Node) -> None:
        """Until the model is asked."""
        await until(lambda: bool(roost.model.requests))


async def test_the_model_is_asked_while_that_is_logged_and_nothing_is_shown_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held = HeldLog(monkeypatch)
    async with node(tmp_path) as roost:
        session = await roost.session()
        start = await roost.say(session, script({"text": "Good morning."}))
        await held.asked(roost)
        logged = await roost.store.log.read(session.id, start - 1, 100)
        assert "span.model_request_start" not in types(logged)
        held.free.set()
        entries = await roost.until(session, "session.status_idle", start - 1)
        begun, said, ended = types(entries)[4:7]
        assert (begun, ended) == ("span.model_request_start", "span.model_request_end")
        assert (said, texts(entries)) == ("agent.message", ["Good morning."])


async def test_killed_when_the_model_is_asked_and_the_log_does_not_say_so_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        held = HeldLog(patch)
        async with node(tmp_path) as roost:
            session = await roost.session()
            await roost.say(session, script({"text": "Good morning."}))
            await held.asked(roost)
    async with node(tmp_path) as roost:
        entries = await roost.until(session, "session.status_idle")
        assert texts(entries) == ["Good morning."]
        assert types(entries).count("span.model_request_start") == 1
        assert types(entries).count("span.model_request_end") == 1


async def test_a_harness_that_fails_meanwhile_is_told_of_after_what_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held = HeldLog(monkeypatch)

    async def fails(requests: object) -> AsyncGenerator[Json, None]:
        held.free.set()
        raise RuntimeError("the harness fell over")
        yield {}

    monkeypatch.setattr(MessagesApi, "ask", lambda api, request: fails(request))
    async with node(tmp_path) as roost:
        session = await roost.session()
        start = await roost.say(session, script({"text": "Good morning."}))
        entries = await roost.until(session, "session.error", start - 1)
        assert "span.model_request_start" in types(entries)


async def test_a_message_is_answered_and_the_session_rests(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        entries = await roost.turn(session, "Hello")
        assert types(entries) == [
            "user.message",
            "session.status_running",
            "session.thread_status_running",
            "user.message",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert entries[0].queued
        assert not entries[3].queued
        assert entries[0].id == entries[3].id
        assert entries[-1].fields["stop_reason"] == {"type": "end_turn"}
        assert (await roost.store.sessions.get(TENANT, session.id)).state.status is Status.IDLE


async def test_a_conversation_goes_on_over_turns_and_leases(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        await roost.turn(session, "one")
        (answer,) = texts(await roost.turn(session, "two"))
        assert "2 user messages" in answer


async def test_messages_sent_while_it_works_are_answered_in_order_before_it_rests(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        start = await roost.say(session, script({"text": "slow one", "delay": 0.3}))
        await roost.until(session, "span.model_request_start")
        await roost.say(session, "second", "third")
        entries = await roost.until(session, "session.status_idle", start - 1)
        assert types(entries).count("session.status_idle") == 1
        assert texts(entries)[0] == "slow one"
        assert "3 user messages" in texts(entries)[-1]


async def test_an_interrupt_stops_the_turn_and_withdraws_what_waits_behind_it(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        start = await roost.say(session, script({"text": "word " * 400, "chunk_delay": 1}))
        await roost.until(session, "span.model_request_start")
        await roost.say(session, script({"text": "queued before"}))
        stop = [new_draft("user.interrupt"), message("and then this")]
        await roost.intake.accept(session.id, stop)
        entries = await roost.until(session, "session.status_idle", start - 1)
        taken = [(e.type, e.queued, e.withdrawn) for e in entries if e.type.startswith("user.")]
        assert taken == [
            ("user.message", True, False),
            ("user.message", False, False),
            ("user.message", True, False),
            ("user.interrupt", True, False),
            ("user.message", False, True),
            ("user.message", True, False),
            ("user.interrupt", False, False),
            ("user.message", False, False),
        ]
        assert len(texts(entries)[0]) < 2000
        assert "2 user messages" in texts(entries)[-1], "the withdrawn one was never told"


async def test_a_failing_model_is_retried_in_the_open(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        step = {"text": "at last", "error": {"status": 529, "times": 2}}
        entries = await roost.turn(session, script(step))
        story = [t for t in types(entries) if t.startswith(("session.status", "session.error"))]
        assert story == [
            "session.status_running",
            "session.error",
            "session.status_rescheduled",
            "session.status_running",
            "session.error",
            "session.status_rescheduled",
            "session.status_running",
            "session.status_idle",
        ]
        assert texts(entries) == ["at last"]


async def test_a_model_that_never_recovers_costs_the_turn_and_not_the_session(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        entries = await roost.turn(session, script({"text": "x", "error": {"status": 500}}))
        assert entries[-1].fields["stop_reason"] == {"type": "retries_exhausted"}
        errors = [
            e.fields["error"]["retry_status"]["type"] for e in entries if e.type == "session.error"
        ]
        assert errors == ["retrying", "retrying", "exhausted"]
        assert texts(await roost.turn(session, script({"text": "fine"}))) == ["fine"]


async def test_a_conversation_that_is_too_large_costs_the_turn_and_not_the_session(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        error = {"status": 413, "type": "request_too_large", "message": "too long"}
        entries = await roost.turn(session, script({"text": "x", "error": error}))
        [said] = [e.fields["error"] for e in entries if e.type == "session.error"]
        assert said["retry_status"] == {"type": "exhausted"}
        assert "rewind" in said["message"]
        assert entries[-1].fields["stop_reason"] == {"type": "retries_exhausted"}
        found = await roost.store.sessions.get(TENANT, session.id)
        assert found.state.status is Status.IDLE


async def test_a_session_whose_workspace_was_deleted_ends(tmp_path: Path):
    def queue_of(store: SqliteStore, notifier: LocalNotifier) -> WorkspaceQueue:
        return DeletedQueue()

    async with node(tmp_path, queue_of=queue_of) as roost:
        session = await roost.session(message("Hello?"))
        entries = await roost.until(session, "session.status_terminated")
        [said] = [e.fields["error"] for e in entries if e.type == "session.error"]
        assert (said["code"], said["retry_status"]) == ("workspace_deleted", {"type": "terminal"})
        assert "was deleted. Its files are gone" in said["message"]


class DeletedQueue(NoWorkspaceQueue):
    """The queue of a workspace that is gone."""

    async def passed(self, session: Session, log: LeasedLog, since: int) -> bool:
        raise WorkspaceDeleted()


async def test_inputs_given_at_creation_are_worked_on(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session(message("first thing"))
        assert session.state.status is Status.RUNNING
        assert len(texts(await roost.until(session, "session.status_idle"))) == 1


async def test_a_session_whose_harness_is_unknown_says_so_and_keeps_its_input(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session(harness="absent")
        entries = await roost.turn(session, "Hello?")
        error = next(e for e in entries if e.type == "session.error").fields["error"]
        assert "absent" in error["message"]
        assert error["code"] == "harness_unavailable"
        assert entries[-1].fields["stop_reason"] == {"type": "retries_exhausted"}
        assert len(await roost.store.log.inputs(session.id)) == 1


async def test_more_sessions_than_runners_all_get_their_turn(tmp_path: Path):
    async with node(tmp_path, max_runners=2) as roost:
        sessions = [await roost.session(message("go")) for _ in range(12)]
        for session in sessions:
            assert len(texts(await roost.until(session, "session.status_idle"))) == 1


async def test_a_follower_sees_the_text_arrive_and_then_the_event(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        seen: list[Entry | Preview] = []
        wanted = frozenset({"agent.message"})
        async with aclosing(roost.follow.tail(session.id, 0, previews=wanted)) as tail:
            await roost.say(session, script({"text": "a b c d", "chunk_delay": 0.02}))
            async for shown in tail:
                assert not isinstance(shown, Pause)
                seen.append(shown)
                if isinstance(shown, Entry) and shown.type == "session.status_idle":
                    break
        previews = [p for p in seen if isinstance(p, Preview)]
        (final,) = [e for e in seen if isinstance(e, Entry) and e.type == "agent.message"]
        assert previews[0].text == ""
        assert "".join(p.text for p in previews) == "a b c d"
        assert {p.event_id for p in previews} == {final.id}
        assert seen.index(previews[-1]) < seen.index(final)
        begun = next(
            e for e in seen if isinstance(e, Entry) and e.type == "span.model_request_start"
        )
        assert seen.index(begun) < seen.index(previews[0])


async def test_a_follower_of_a_deleted_session_is_told(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        await roost.turn(session, "Hello")
        async with aclosing(roost.follow.tail(session.id, 0)) as tail:
            async for shown in tail:
                if isinstance(shown, Entry) and shown.type == "session.status_idle":
                    await roost.store.sessions.delete(TENANT, session.id)
                    roost.notifier.notify(session.id)
                if shown is Pause.GONE:
                    break


async def test_a_quiet_stream_gives_a_sign_of_life(tmp_path: Path):
    async with node(tmp_path, heartbeat=0.05) as roost:
        session = await roost.session()
        async with aclosing(roost.follow.tail(session.id, 0)) as tail:
            assert await anext(tail) is Pause.QUIET


async def test_a_turn_cut_off_by_a_stop_is_handed_back_and_goes_on_after_it(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        await roost.say(
            session,
            script(
                {"text": "slow", "delay": 0.8},
            ),
        )
        await roost.until(session, "span.model_request_start")
    async with node(tmp_path) as roost:
        found = await roost.store.sessions.get(TENANT, session.id)
        assert found.state.status is Status.RUNNING
        entries = await roost.until(session, "session.status_idle")
        assert texts(entries) == ["slow"]
        assert [e.type for e in entries].count("user.message") == 2


async def test_a_stream_opened_after_a_send_begins_at_the_send(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        sent = await roost.say(session, "nobody watches")
        await roost.until(session, "session.status_idle")
        assert await where_a_stream_begins(roost, session) == sent - 1
        assert await where_a_stream_begins(roost, session) == sent - 1  # the first was never read


async def test_a_stream_does_not_begin_at_a_send_that_another_stream_has_shown(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        async with aclosing(roost.follow.tail(session.id, 0, counts=True)) as tail:
            await roost.say(session, "somebody watches")
            async for shown in tail:
                if isinstance(shown, Entry) and shown.type == "session.status_idle":
                    break
        assert await where_a_stream_begins(roost, session) == shown.seq


async def test_a_reader_with_a_cursor_takes_nothing_away_from_one_without(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        async with aclosing(roost.follow.tail(session.id, 0)) as dashboard:
            sent = await roost.say(session, "Hello")
            async for shown in dashboard:
                if isinstance(shown, Entry) and shown.type == "session.status_idle":
                    break
            assert await where_a_stream_begins(roost, session) == sent - 1


async def where_a_stream_begins(roost: Node, session: Session) -> int:
    return await roost.follow.start_of(await roost.store.sessions.get(TENANT, session.id))


async def test_a_preview_is_shown_as_soon_as_the_entries_before_it_are(tmp_path: Path):
    async with node(tmp_path, working=False) as roost:
        session = await roost.session()
        wanted = frozenset({"agent.message"})
        async with (
            aclosing(roost.follow.tail(session.id, 0, previews=wanted)) as tail,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_write_and_show, roost, session)
            shown = [await anext(tail)]
            with anyio.fail_after(60):
                while not isinstance(shown[-1], Preview):
                    shown.append(await anext(tail))
        assert [s.seq for s in shown if isinstance(s, Entry)] == [1, 2, 3]


async def _write_and_show(roost: Node, session: Session) -> None:
    """As a runner does it, with no moment between the two in which a follower could look."""
    await roost.store.log.accept(session.id, [message("Hello")])
    roost.notifier.notify(session.id)
    roost.notifier.publish(session.id, Preview("sevt_1", "agent.message", "", after=3))


@pytest.mark.parametrize("late", ["the end of its text", "all of it"])
async def test_text_of_an_event_that_was_shown_is_not_shown_after_it(tmp_path: Path, late: str):
    """Previews and notifications go different ways between nodes: any of them may come after the event."""
    async with node(tmp_path, working=False) as roost:
        lease = await Stage(roost.store).running()
        done, next_one = answer("done"), answer("next")

        def show(event: Draft, *texts: str) -> None:
            for text in texts:
                roost.notifier.publish(lease.session_id, Preview(event.id, event.type, text, 1))

        wanted = frozenset({"agent.message"})
        async with aclosing(roost.follow.tail(lease.session_id, 0, previews=wanted)) as tail:
            shown = [await anext(tail)]
            if late == "the end of its text":
                show(done, "", "do")
            await roost.store.log.append(lease, Batch(drafts=[done]))
            roost.notifier.notify(lease.session_id)
            with anyio.fail_after(60):
                while not (isinstance(shown[-1], Entry) and shown[-1].id == done.id):
                    shown.append(await anext(tail))
                show(done, *(["ne"] if late == "the end of its text" else ["", "done"]))
                show(next_one, "", "n")
                after = [await anext(tail), await anext(tail)]
        assert after == [Preview(next_one.id, next_one.type, text, 1) for text in ("", "n")]


async def test_a_turn_that_ended_before_the_server_began_is_not_shown_again(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        await roost.turn(session, "Hello")
        found = await roost.store.sessions.get(TENANT, session.id)
        later = Follow(
            roost.store.log,
            roost.store.sessions,
            roost.notifier,
            roost.store.marks,
            heartbeat=15,
            catch_up=10,
            since=found.read_at,
        )
        assert await later.start_of(found) == found.state.head


async def test_a_turn_somebody_has_read_to_its_end_is_not_shown_again(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session()
        sent = await roost.say(session, "Hello")
        running = await roost.store.sessions.get(TENANT, session.id)
        await roost.follow.looked(running)
        await roost.until(session, "session.status_idle")
        assert await where_a_stream_begins(roost, session) == sent - 1
        rests = await roost.store.sessions.get(TENANT, session.id)
        await roost.follow.looked(rests)
        assert await where_a_stream_begins(roost, session) == rests.state.head


async def test_a_turn_that_another_node_has_shown_is_not_shown_again(tmp_path: Path):
    """A program without a cursor opens its next stream wherever the load balancer sends it."""
    async with node(tmp_path) as roost:

        def another() -> Follow:
            return Follow(
                *(roost.store.log, roost.store.sessions, roost.notifier, roost.store.marks),
                heartbeat=15,
                catch_up=10,
            )

        session = await roost.session()
        sent = await roost.say(session, "Hello")
        await roost.until(session, "session.status_idle")
        found = await roost.store.sessions.get(TENANT, session.id)
        assert await another().start_of(found) == sent - 1
        async with aclosing(roost.follow.tail(session.id, sent - 1, counts=True)) as tail:
            async for shown in tail:
                if isinstance(shown, Entry) and shown.type == "session.status_idle":
                    break
        assert await another().start_of(found) == found.state.head


@pytest.mark.parametrize(
    ("bound", "problem"),
    [("_MOST_WRITTEN", "bytes in one turn"), ("_MOST_ASKED", "answers in one turn")],
)
async def test_an_agent_that_says_or_asks_too_much_in_a_turn_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, problem: str
):
    monkeypatch.setattr(
        f"roost.core.work.turn.{bound}", {"_MOST_WRITTEN": 1000, "_MOST_ASKED": -1}[bound]
    )
    async with node(tmp_path) as roost:
        session = await roost.session()
        entries = await roost.turn(session, script({"text": "word " * 1000}))
        [error] = [entry for entry in entries if entry.type == "session.error"]
        assert problem in error.fields["error"]["message"]
        assert entries[-1].fields["stop_reason"] == {"type": "retries_exhausted"}
        assert "agent.message" not in types(entries)


async def test_other_nodes_are_told_that_an_input_was_shown_and_not_of_every_entry(tmp_path: Path):
    async with node(tmp_path, working=False, heartbeat=0.01) as roost:
        session = await roost.session(message("Hello"))
        seen = 0
        async with aclosing(roost.follow.tail(session.id, 0, counts=True)) as tail:
            async for shown in tail:
                if not isinstance(shown, Entry):
                    break  # it has been quiet since
                seen = shown.seq
        assert seen == 3
        assert await roost.store.marks.up_to(session.id) == 1
