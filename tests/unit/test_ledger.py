"""The rules of the log, on their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, Standby, TurnMark
from roost.domain.ledger_writer import PLACE, Change
from roost.domain.session import TABLE, Lease, Move, Pending, Spec, State, Status, step
from roost.domain.usage import Usage
from roost.errors import (
    InvalidRequest,
    LeaseLost,
    QueueFull,
    QuotaExceeded,
    SessionBusy,
    SessionClosed,
)
from roost.ports.drafts import new_draft
from roost.testing.stage import at

NOW = 1_700_000_000_000_000
LEASE = Lease("sesn_1", "node_1", 1)


def idle(**fields: Any) -> State:
    return State(thread_id="sthr_1", agent_name="helper", **fields)


def claimed(**fields: Any) -> State:
    state = ledger.admit(idle(**fields), [say("go")], at(NOW), 10).state
    return ledger.take(state, "node_1")


def say(text: str) -> Draft:
    return new_draft("user.message", content=[{"type": "text", "text": text}])


def answer(event_id: str) -> Draft:
    return new_draft("user.custom_tool_result", custom_tool_use_id=event_id)


def types(change: Change) -> list[str]:
    return [entry.type for entry in change.entries]


def test_a_message_wakes_an_idle_session_in_the_same_change():
    change = ledger.admit(idle(), [say("hi")], at(NOW), 10)
    assert types(change) == [
        "user.message",
        "session.status_running",
        "session.thread_status_running",
    ]
    assert change.state.status is Status.RUNNING
    assert [entry.seq for entry in change.entries] == [1, 2, 3]
    assert change.entries[0].queued
    assert b'"processed_at":null' in change.entries[0].json()


def test_a_message_to_a_running_session_is_queued_and_nothing_more():
    state = claimed()
    change = ledger.admit(state, [say("more")], at(NOW), 10)
    assert types(change) == ["user.message"]
    assert change.state.queued == 2


def test_taking_an_input_up_shows_the_same_event_again_with_its_time():
    first = ledger.admit(idle(), [say("hi")], at(NOW), 10)
    state = ledger.take(first.state, "node_1")
    change = ledger.work(state, LEASE, Batch(takes=first.opened, turn=TurnMark.BEGIN), at(NOW + 5))
    (again,) = change.entries
    assert again.id == first.opened[0].id
    assert not again.queued
    assert again.body == first.opened[0].body
    assert change.consumed == [1]
    assert change.state.queued == 0
    assert change.state.turn == (1,)


def at_rest() -> tuple[State, Standby]:
    """A session whose runner stands by."""
    state = idle(owner="node_1", generation=1, head=7)
    return state, Standby(LEASE, seen=7)


def test_what_is_said_to_who_stands_by_is_taken_up_in_the_same_change():
    state, standby = at_rest()
    change = ledger.admit(state, [say("one"), say("two")], at(NOW), 10, standby)
    assert types(change) == [
        *["user.message"] * 2,
        "session.status_running",
        "session.thread_status_running",
        *["user.message"] * 2,
    ]
    assert [entry.queued for entry in change.entries[:2]] == [True, True]
    assert [entry.queued for entry in change.entries[-2:]] == [False, False]
    assert [entry.id for entry in change.entries[:2]] == [e.id for e in change.entries[-2:]]
    assert change.consumed == [8, 9]
    assert (change.state.turn, change.state.queued, change.state.head) == ((8, 9), 0, 13)


@pytest.mark.parametrize(
    "other",
    [
        {"head": 8},
        {"generation": 2},
        {"owner": "node_2"},
        {"owner": None},
        {"turn": (3,)},
        {"queued": 1},
        {"status": Status.RUNNING},
    ],
)
def test_who_stands_by_for_something_else_gets_nothing(other: dict[str, Any]):
    state, standby = at_rest()
    change = ledger.admit(replace(state, **other), [say("one")], at(NOW), 10, standby)
    assert change.consumed == []
    assert change.state.turn == other.get("turn")
    assert change.state.queued == 1 + other.get("queued", 0)


def test_a_turn_begins_at_once_with_words_alone():
    state, standby = at_rest()
    for drafts in ([new_draft("user.interrupt"), say("x")], [new_draft("system.message")]):
        change = ledger.admit(state, drafts, at(NOW), 10, standby)
        assert change.consumed == []
        assert change.state.turn is None
    asked = replace(state, pending=(Pending("sevt_a", "custom_tool"),))
    assert ledger.admit(asked, [answer("sevt_a")], at(NOW), 10, standby).consumed == []


def test_an_interrupt_to_an_idle_session_is_done_at_once_and_wakes_nobody():
    change = ledger.admit(idle(), [new_draft("user.interrupt")], at(NOW), 10)
    assert types(change) == ["user.interrupt"]
    assert not change.entries[0].queued
    assert change.opened == []
    assert change.state.status is Status.IDLE


def test_an_interrupt_followed_by_a_message_starts_the_next_turn():
    change = ledger.admit(idle(), [new_draft("user.interrupt"), say("again")], at(NOW), 10)
    assert change.state.status is Status.RUNNING
    assert [entry.type for entry in change.opened] == ["user.message"]


def waiting(*event_ids: str) -> State:
    return idle(pending=tuple(Pending(event_id, "custom_tool") for event_id in event_ids))


def test_an_answer_to_the_last_open_question_wakes_the_session():
    change = ledger.admit(waiting("sevt_a"), [answer("sevt_a")], at(NOW), 10)
    assert change.state.status is Status.RUNNING
    assert change.state.pending == ()
    assert not change.entries[0].queued


def test_an_answer_to_one_of_two_questions_says_what_is_still_open():
    change = ledger.admit(waiting("sevt_a", "sevt_b"), [answer("sevt_b")], at(NOW), 10)
    assert change.state.status is Status.IDLE
    assert types(change)[-2:] == ["session.usage", "session.status_idle"]
    assert change.entries[-1].fields["stop_reason"] == {
        "type": "requires_action",
        "event_ids": ["sevt_a"],
    }


def test_a_second_answer_is_refused():
    state = ledger.admit(waiting("sevt_a"), [answer("sevt_a")], at(NOW), 10).state
    with pytest.raises(InvalidRequest, match="sevt_a"):
        ledger.admit(state, [answer("sevt_a")], at(NOW), 10)


def test_a_message_does_not_wake_a_session_that_waits_for_an_answer():
    change = ledger.admit(waiting("sevt_a"), [say("meanwhile")], at(NOW), 10)
    assert change.state.status is Status.IDLE
    assert change.state.queued == 1


def test_a_fallback_that_was_taken_is_the_first_entry_of_the_log():
    made = Spec(agent={}, environment_id="env_1", sandbox="docker", sandbox_fallback="docker")
    change = ledger.create(idle(), made, [say("x")], at(NOW))
    assert types(change)[:2] == ["roost.fallback_taken", "user.message"]
    assert [entry.seq for entry in change.entries] == list(range(1, change.state.head + 1))
    assert change.opened[0].seq == 2
    for other in ({"sandbox": "bubblewrap"}, {"sandbox_fallback": None}):
        plain = ledger.create(idle(), replace(made, **other), [], at(NOW))
        assert plain.entries == []


def test_an_interrupt_closes_a_question_and_the_session_rests():
    change = ledger.admit(waiting("sevt_a"), [new_draft("user.interrupt")], at(NOW), 10)
    assert (change.state.status, change.state.pending) == (Status.IDLE, ())
    assert change.entries[-1].fields["stop_reason"] == {"type": "end_turn"}


@pytest.mark.parametrize(
    ("reason", "left"), [("budget_reached", (1,)), ("retries_exhausted", None)]
)
def test_an_interrupt_ends_a_turn_that_was_cut_off_unless_the_budget_did_that(
    reason: str, left: tuple[int, ...] | None
):
    first = ledger.admit(idle(), [say("go")], at(NOW), 10)
    begun = Batch(takes=first.opened, turn=TurnMark.BEGIN)
    state = ledger.work(ledger.take(first.state, "node_1"), LEASE, begun, at(NOW)).state
    stopped = Batch(turn=TurnMark.SUSPEND)
    change = ledger.rest(state, LEASE, state.head, stopped, {"type": reason}, at(NOW), keep=False)
    assert change is not None and change.state.turn == (1,)
    after = ledger.admit(change.state, [new_draft("user.interrupt")], at(NOW), 10).state
    assert (after.status, after.turn) == (Status.IDLE, left)


def test_a_full_queue_refuses_the_whole_request():
    state = claimed()
    with pytest.raises(QueueFull):
        ledger.admit(state, [say("a"), say("b"), say("c")], at(NOW), 3)
    assert ledger.admit(state, [say("a"), say("b")], at(NOW), 3).state.queued == 3


def test_a_log_takes_messages_up_to_a_bound_and_still_interrupts():
    long = replace(claimed(), head=ledger.MOST_ENTRIES)
    with pytest.raises(QuotaExceeded):
        ledger.admit(long, [say("a")], at(NOW), 10)
    assert ledger.admit(long, [new_draft("user.interrupt")], at(NOW), 10).entries
    shorter = replace(long, head=ledger.MOST_ENTRIES - 1)
    assert ledger.admit(shorter, [say("a")], at(NOW), 10).entries


def test_a_large_message_takes_more_than_one_slot():
    large = say("x" * 3 * PLACE)
    state = ledger.admit(claimed(), [large], at(NOW), 5).state
    assert state.queued == 1 + 4
    with pytest.raises(QueueFull):
        ledger.admit(state, [say("a")], at(NOW), 5)
    empty = State(thread_id="sthr_1", agent_name="a")
    assert ledger.admit(empty, [large], at(NOW), 2).state.queued == 4, (
        "there is always room for one"
    )
    with pytest.raises(QueueFull):
        ledger.admit(empty, [say("a"), say("b"), say("c")], at(NOW), 2)
    waits = ledger.admit(waiting("sevt_a"), [large], at(NOW), 4).state
    answer = new_draft("user.custom_tool_result", custom_tool_use_id="sevt_a", content="x" * 10**8)
    assert ledger.admit(waits, [answer], at(NOW), 4).state.queued == 5, "an answer is always let in"


def test_a_full_queue_still_takes_what_empties_it():
    full = ledger.admit(waiting("sevt_a"), [say("a"), say("b")], at(NOW), 2).state
    with pytest.raises(QueueFull):
        ledger.admit(full, [say("c")], at(NOW), 2)
    answer = new_draft("user.custom_tool_result", custom_tool_use_id="sevt_a")
    assert ledger.admit(full, [answer], at(NOW), 2).state.status is Status.RUNNING
    busy = replace(full, status=Status.RUNNING, turn=(1,), owner="node_1")
    assert ledger.admit(busy, [new_draft("user.interrupt")], at(NOW), 2).state.queued == 3
    with pytest.raises(QueueFull):
        ledger.admit(busy, [new_draft("user.interrupt")] * 101, at(NOW), 2)


def test_a_stale_lease_writes_nothing():
    state = ledger.take(claimed(), "node_2")
    with pytest.raises(LeaseLost):
        ledger.work(state, LEASE, Batch(drafts=[new_draft("agent.thinking")]), at(NOW))
    with pytest.raises(LeaseLost):
        ledger.rest(state, LEASE, state.head, Batch(), {"type": "end_turn"}, at(NOW), keep=False)


def test_going_idle_is_refused_when_something_arrived_since():
    state = claimed()
    late = ledger.admit(state, [say("late")], at(NOW), 10).state
    end = {"type": "end_turn"}
    assert ledger.rest(late, LEASE, state.head, Batch(), end, at(NOW), keep=False) is None
    change = ledger.rest(late, LEASE, late.head, Batch(), end, at(NOW), keep=False)
    assert change is not None
    assert types(change) == ["session.thread_status_idle", "session.usage", "session.status_idle"]
    assert change.state.owner is None


def test_a_warm_runner_keeps_its_lease_while_idle():
    state = claimed()
    change = ledger.rest(
        state, LEASE, state.head, Batch(), {"type": "end_turn"}, at(NOW), keep=True
    )
    assert change is not None
    assert change.state.owner == "node_1"
    woken = ledger.admit(change.state, [say("next")], at(NOW), 10).state
    assert ledger.work(woken, LEASE, Batch(drafts=[new_draft("agent.thinking")]), at(NOW)).entries


def test_a_retry_is_said_after_its_error_and_the_recovery_before_its_output():
    error = new_draft("session.error", error={"type": "unknown_error"})
    change = ledger.work(claimed(), LEASE, Batch(drafts=[error], move=Move.RETRY), at(NOW))
    assert types(change) == [
        "session.error",
        "session.status_rescheduled",
        "session.thread_status_rescheduled",
    ]
    batch = Batch(drafts=[new_draft("agent.thinking")], move=Move.RECOVER)
    change = ledger.work(change.state, LEASE, batch, at(NOW))
    assert types(change) == [
        "session.status_running",
        "session.thread_status_running",
        "agent.thinking",
    ]


def test_a_terminal_failure_ends_the_session_and_its_lease():
    change = ledger.work(claimed(), LEASE, Batch(move=Move.END), at(NOW))
    assert types(change) == ["session.thread_status_terminated", "session.status_terminated"]
    assert change.state.owner is None
    with pytest.raises(SessionClosed):
        ledger.admit(change.state, [say("hello?")], at(NOW), 10)


def test_usage_adds_up_and_is_told_before_idle():
    state = claimed()
    spent = Batch(drafts=[new_draft("agent.thinking")], spent=Usage(3, 4))
    state = ledger.work(state, LEASE, spent, at(NOW)).state
    state = ledger.work(state, LEASE, spent, at(NOW)).state
    change = ledger.rest(
        state, LEASE, state.head, Batch(), {"type": "end_turn"}, at(NOW + 2_500_000), keep=False
    )
    assert change is not None
    usage = change.entries[-2].fields["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (6, 8)
    assert usage["active_seconds"] == 2.5
    assert change.state.active == 2_500_000


def test_archiving_is_refused_while_running_and_is_the_same_twice():
    with pytest.raises(SessionBusy):
        ledger.close(claimed(), at(NOW))
    change = ledger.close(idle(), at(NOW))
    assert change.state.status is Status.TERMINATED
    assert ledger.close(change.state, at(NOW + 1)).entries == []
    assert ledger.close(change.state, at(NOW + 1)).state.archived_at == NOW


def test_a_note_neither_wakes_nor_settles():
    change = ledger.note(waiting("sevt_a"), [new_draft("session.updated", title="x")], at(NOW))
    assert types(change) == ["session.updated"]
    assert change.state.status is Status.IDLE
    assert change.state.pending


@given(st.lists(st.sampled_from(list(Move)), max_size=30))
def test_no_walk_through_the_table_leaves_it(moves: list[Move]):
    status = Status.IDLE
    for move in moves:
        try:
            after = step(status, move)
        except InvalidRequest as error:
            assert (status, move) not in TABLE
            assert str(status) in error.message
            assert str(move) in error.message
            continue
        assert status is not Status.TERMINATED
        status = after


_INPUTS = st.sampled_from(
    ["message", "said", "interrupt", "answer a", "answer b", "rest", "rest warm", "work", "take"]
)


@given(st.lists(_INPUTS, max_size=40))
def test_whatever_happens_the_log_has_no_gap_and_no_idle_session_owes_an_answer(steps: list[str]):
    """A session that is idle, waits for nobody and has a message queued would be stranded."""
    state, log, opened = waiting("a", "b"), 0, dict[int, Entry]()
    for word in steps:
        change = _do(word, state, opened)
        if change is None:
            continue
        assert [e.seq for e in change.entries] == list(
            range(state.head + 1, state.head + 1 + len(change.entries))
        )
        log += len(change.entries)
        opened |= {entry.seq: entry for entry in change.opened}
        for seq in change.consumed:
            del opened[seq]
        state = change.state
        assert state.head == log
        assert state.queued == len(opened)
        if state.status is Status.IDLE and not state.pending:
            assert not any(entry.type == "user.message" for entry in opened.values())


def _do(word: str, state: State, opened: dict[int, Entry]) -> Change | None:
    lease = Lease("sesn_1", "node_1", state.generation)
    match word.split():
        case ["message"]:
            return ledger.admit(state, [say("x")], at(NOW), 1000)
        case ["said"]:
            return ledger.admit(state, [say("x")], at(NOW), 1000, Standby(lease, state.head))
        case ["interrupt"]:
            stop = [new_draft("user.interrupt")]
            return ledger.admit(state, stop, at(NOW), 1000, waiting=list(opened.values()))
        case ["answer", which] if any(p.event_id == which for p in state.pending):
            return ledger.admit(state, [answer(which)], at(NOW), 1000)
        case ["take"] if state.status is Status.RUNNING:
            return Change(ledger.take(state, "node_1"), [])
        case ["work"] if state.owner:
            return ledger.work(
                state, lease, Batch(takes=list(opened.values()), turn=TurnMark.BEGIN), at(NOW)
            )
        case ["rest", *warm] if state.owner and not opened and state.status is Status.RUNNING:
            end = {"type": "end_turn"}
            return ledger.rest(state, lease, state.head, Batch(), end, at(NOW), keep=bool(warm))
    return None
