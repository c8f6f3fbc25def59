"""How the rules of the log write: entries one after the other, and the state that goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from roost.domain.events import WITHDRAWABLE, Draft, Entry, Moment
from roost.domain.session import TABLE, Move, Pending, State, Status, step
from roost.domain.work_item import CLOSED, ClosedBy
from roost.errors import InvalidRequest, WrongAnswer

_ANSWERS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "user.tool_confirmation": (("confirmation", "gated_tool"), "tool_use_id"),
    "user.custom_tool_result": (("custom_tool",), "custom_tool_use_id"),
    "user.tool_result": (("tool",), "tool_use_id"),
}
"""What each answer answers, and the field that names it."""
_HEARD = {
    "user.message": "message",
    "user.tool_confirmation": "answer",
    "user.custom_tool_result": "answer",
    "user.tool_result": "answer",
}
KEPT_WAITING = {"user.message", "system.message"}
"""What is said to an agent, and waits until it has time for it."""

PLACE = 64 * 1024
"""Bytes. A message takes one slot of the queue, and one more for each of these that it has: so the
limit on slots bounds what a queue weighs, too. What empties the queue takes one, whatever its size."""
_SHOWN_AS_QUEUED = {
    "user.message",
    "user.interrupt",
    "user.tool_confirmation",
    "system.message",
}


class Change(msgspec.Struct, frozen=True):
    """What to commit: the new state, the new entries, the inputs that are new, those that wait no longer:
    taken up or withdrawn. `only_counts`: of the state, nothing changed but its head, and what is queued and sent.
    """

    state: State
    entries: list[Entry]
    opened: list[Entry] = []
    consumed: list[int] = []
    only_counts: bool = False


def _slots(event: Draft | Entry) -> int:
    return 1 + (len(event.body) // PLACE if event.type in KEPT_WAITING else 0)


class LedgerWriter:
    """Writes entries one after the other, and keeps the state that goes with them."""

    __slots__ = (
        "_first",
        "_new_id",
        "_sent",
        "consumed",
        "entries",
        "head",
        "now",
        "opened",
        "queued",
        "state",
    )

    def __init__(self, state: State, moment: Moment) -> None:
        self.state = state
        # These are counted here, and put into the state once, at the end.
        self.head = state.head
        self.queued = state.queued
        self._sent = state.sent, state.sent_at
        self.now = moment.now
        self._new_id = moment.new_id
        self.entries: list[Entry] = []
        self.opened: list[Entry] = []
        self.consumed: list[int] = []
        self._first = True

    def change(self, before: State | None = None) -> Change:
        """All that was written. `before`: the state as the store has it, if that is to see `only_counts`."""
        sent, sent_at = self._sent
        state = replace(self.state, head=self.head, queued=self.queued, sent=sent, sent_at=sent_at)
        return Change(state, self.entries, self.opened, self.consumed, self.state is before)

    def write(self, draft: Draft, *, queued: bool = False) -> Entry:
        """Add one entry to the log."""
        self.head += 1
        entry = Entry(self.head, draft.id, draft.type, draft.body, self.now, queued)
        self.entries.append(entry)
        return entry

    def say(self, type: str, **fields: Any) -> Entry:
        """One entry that the rules add by themselves."""
        return self.write(Draft.of_fields(type, self._new_id(), fields))

    def hear(self, draft: Draft) -> str | None:
        """Queue one input, and say what kind of thing it is to an idle session."""
        kind = _HEARD.get(draft.type)
        if kind == "answer":
            self.settle(draft)
        self.open(draft)
        return kind

    def open(self, draft: Draft) -> None:
        """An input that waits."""
        entry = self.write(draft, queued=draft.type in _SHOWN_AS_QUEUED)
        if self.state.status is Status.IDLE and self._first:  # since it last rested
            self.state = replace(self.state, first_input=entry.seq)
        self._first = False
        self.opened.append(entry)
        self.queued += _slots(draft)
        self._sent = entry.seq, self.now

    def interrupt(self, draft: Draft, waiting: Sequence[Entry]) -> None:
        """Stop: the inputs that wait are withdrawn, and the session rests.

        A turn that has a runner is ended by that: for it the interrupt waits. In all other cases nothing
        is under way that could not end here, so it ends with this very change, whoever may be about to
        begin something.
        """
        at_work = self._is_at_work()
        if at_work:
            self.open(draft)
        else:
            self.write(draft)
        mine = [*waiting, *self.opened]
        left = [entry for entry in mine if entry.seq not in self.consumed]
        self.consume([e for e in left if e.type == "user.interrupt" and not at_work])
        self._withdraw([e for e in left if e.type != "user.interrupt"], draft.id)
        if not at_work:
            self._stand_down(answered=any(entry.type in _ANSWERS for entry in left))

    def _is_at_work(self) -> bool:
        state = self.state
        return state.status is not Status.IDLE and bool(state.turn) and state.owner is not None

    def _withdraw(self, inputs: Sequence[Entry], by: str) -> None:
        """No agent will ever get these. A result of a custom tool stays: it only begins nothing."""
        for entry in inputs:
            if entry.type in WITHDRAWABLE:
                self.write(entry.withdrawn_at(self.now))
            self._wait_no_longer(entry)
        if gone := [entry.id for entry in inputs if entry.type in WITHDRAWABLE]:
            self.say("roost.withdrawn", event_ids=gone, interrupt_id=by)

    def _stand_down(self, *, answered: bool) -> None:
        """Rest, without having done anything. A turn that the budget has stopped still goes on when that is
        raised: an interrupt changes nothing about it, as the API has it. Any other that was cut off, or
        waited for an answer or with one (`answered`), is over.
        """
        before = self.state
        turn = before.turn if before.limited and before.status is Status.IDLE else None
        ends = turn is None and bool(before.turn or before.pending or answered)
        self.state = replace(before, pending=(), turn=turn)
        self.close_calls(before.pending, "interrupted")
        self._first = True
        if before.status is not Status.IDLE:
            self.move(Move.REST)
        if before.status is not Status.IDLE or before.pending:
            self.rest({"type": "end_turn"})
        if ends:
            self.state = replace(self.state, turned=self.head, limited=False)

    def begin(self, inputs: Sequence[Entry]) -> None:
        """The agent's turn: these are handed to it."""
        turn = tuple(entry.seq for entry in inputs)
        self.state = replace(self.state, turn=turn, turned=0)
        self.consume(inputs)

    def consume(self, inputs: Sequence[Entry]) -> None:
        """Inputs that wait no longer."""
        for entry in inputs:
            if entry.queued:
                self.write(entry.taken_up())
            self._wait_no_longer(entry)

    def _wait_no_longer(self, entry: Entry) -> None:
        self.consumed.append(entry.seq)
        self.queued -= _slots(entry)

    def settle(self, draft: Draft) -> None:
        """What an answer answers.

        :raises InvalidRequest: nothing waits for it :raises WrongAnswer: it waits for another kind
        """
        kinds, field = _ANSWERS[draft.type]
        fields = msgspec.json.decode(draft.body)
        target = fields[field]
        asked = next((p for p in self.state.pending if p.event_id == target), None)
        if asked is None:
            raise InvalidRequest(
                f"{field}: {target!r} is not waiting for a {draft.type}",
                hint="It was answered already, was interrupted, or never asked; list the events.",
            )
        if asked.kind not in kinds:
            [needed] = (name for name, (others, _) in _ANSWERS.items() if asked.kind in others)
            raise WrongAnswer(f"{field}: {target!r} waits for a {needed}, not for a {draft.type}")
        left = [p for p in self.state.pending if p is not asked]
        if asked.kind == "gated_tool" and fields["result"] == "allow":
            if "modified_input" in fields:
                raise InvalidRequest("modified_input: a worker makes the call as it was asked for")
            # In this change: a worker may be quicker than a runner.
            left.append(Pending(target, "tool"))
        self.state = replace(self.state, pending=tuple(left))

    def close_calls(self, calls: Iterable[Pending], by: ClosedBy) -> None:
        """Nobody waits for these any more. Workers make every call that has no result of a client's, so one is
        written for each that a worker was to make, or might have made.
        """
        said = {
            "content": [{"type": "text", "text": CLOSED[by]}],
            "is_error": True,
            "closed": by,
        }
        for call in calls:
            if call.by_worker:
                self.say("user.tool_result", tool_use_id=call.event_id, **said)
            elif call.offered:
                self.say("user.custom_tool_result", custom_tool_use_id=call.event_id, **said)

    def move_if_it_can(self, move: Move) -> None:
        """What a runner says of a session that was put to rest in the meantime moves it nowhere."""
        if (self.state.status, move) in TABLE:
            self.move(move)

    def move(self, move: Move) -> None:
        """Another status, and the entries that say so."""
        before = self.state
        after = step(before.status, move)
        since, active = before.active_since, before.active
        if after is Status.RUNNING:
            since = self.now if before.status is Status.IDLE else since
        elif since and after in (Status.IDLE, Status.TERMINATED):
            since, active = 0, active + self.now - since
        self.state = replace(before, status=after, active=active, active_since=since)
        if move is Move.RETRY:
            self._announce("rescheduled")
        elif after is Status.RUNNING:
            self._announce("running")

    def rest(self, stop_reason: dict[str, Any]) -> None:
        """Why it rests, and what it has used."""
        self._thread("idle", stop_reason=stop_reason)
        usage = self.state.shown_usage(self.state.active_seconds(self.now))
        self.say("session.usage", usage=usage, budget=self.state.budget)
        trust = self.state.trust_level
        self.say("session.status_idle", stop_reason=stop_reason, trust_level=trust)

    def end(self) -> None:
        """The session is terminated, and waits for nobody."""
        self.move(Move.END)
        self.close_calls(self.state.pending, "session_ended")
        self._thread("terminated")
        self.say("session.status_terminated")
        self.state = replace(self.state, owner=None, turn=None, pending=())

    def _announce(self, status: str) -> None:
        self.say(f"session.status_{status}", trust_level=self.state.trust_level)
        self._thread(status)

    def _thread(self, status: str, **more: Any) -> None:
        state = self.state
        fields = {"session_thread_id": state.thread_id, "agent_name": state.agent_name, **more}
        self.write(Draft.of_fields(f"session.thread_status_{status}", self._new_id(), fields))
