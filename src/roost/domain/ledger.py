"""The rules of the log: what one operation adds to it, and where the session stands afterwards.

Every store runs exactly these functions inside its transaction, on the state it read there, and
writes what comes back. So what a session may do is decided here, once, for all databases; a store
only decides how it gets to disk. A rule either raises before anything is written, or returns a
`Change` that is to be committed whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from roost.domain.budget import Spent
from roost.domain.events import Draft, Entry, Moment
from roost.domain.ledger_writer import KEPT_WAITING, Change, LedgerWriter
from roost.domain.rewinds import Rewind
from roost.domain.session import Lease, Move, Pending, Spec, State, Status
from roost.domain.usage import Usage
from roost.errors import (
    Conflict,
    LeaseLost,
    QueueFull,
    QuotaExceeded,
    SessionBusy,
    SessionClosed,
)


class Standby(msgspec.Struct, frozen=True):
    """A runner at rest whose agent is ready: its turn begins with what is said next, if nothing else was
    written since `seen`.
    """

    lease: Lease
    seen: int


class TurnMark(Enum):
    """What a batch says about the agent's turn. At rest a turn is over, unless it is suspended."""

    NONE = "none"
    """Nothing: the turn goes on, or there is none."""
    BEGIN = "begin"
    """A turn begins with the inputs that the batch takes."""
    END = "end"
    """The turn is over."""
    SUSPEND = "suspend"
    """Said at rest only: the turn is not over, and is taken again when the session wakes."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner writes at once.

    `takes` are queued inputs it hands to the agent now; `blocks` and `unblocks` are the events the
    session begins or ceases to wait for; `counted` is what the way out has seen it spend, and `budget`
    what it may spend, for the account that is given at rest.
    """

    drafts: Sequence[Draft] = ()
    takes: Sequence[Entry] = ()
    move: Move | None = None
    spent: Usage | None = None
    counted: Spent | None = None
    budget: dict[str, Any] | None = None
    blocks: Sequence[Pending] = ()
    unblocks: Sequence[str] = ()
    turn: TurnMark = TurnMark.NONE

    @property
    def reckons(self) -> bool:
        """Whether it changes what the session waits for, or what it has used."""
        return bool(self.blocks or self.unblocks or self.spent or self.counted)


MOST_ENTRIES = 1_000_000  # of a log that takes messages
_RESERVE = 100  # slots of a queue for interrupts and answers only


def admit(
    state: State,
    drafts: Sequence[Draft],
    moment: Moment,
    max_queued: int,
    standby: Standby | None = None,
    waiting: Sequence[Entry] = (),
) -> Change:
    """Inputs from a client: queue them, settle what they answer, wake the session if that makes work.

    If its runner stands by for just that, they are taken up in the same change. An interrupt withdraws
    what is `waiting`, and what comes before it here; `waiting` is needed only if there is one.

    :raises SessionClosed: it is terminated
    :raises QueueFull: more inputs would wait than the operator allows, or more in them
    :raises QuotaExceeded: the log has as many entries as it may
    :raises InvalidRequest: an answer to something the session does not wait for
    """
    if state.status is Status.TERMINATED:
        raise SessionClosed()
    if state.head >= MOST_ENTRIES and any(draft.type == "user.message" for draft in drafts):
        raise QuotaExceeded(
            f"the log of this session has {state.head} entries, and takes no more messages",
            hint="Go on in a new session.",
        )
    writer = LedgerWriter(state, moment)
    heard = _heard(writer, drafts, waiting)
    if writer.queued > max_queued and (state.queued or len(drafts) > max_queued):
        _check_reserve(state, drafts, writer.queued - max_queued)
    if writer.state.status is Status.IDLE:
        if not writer.state.pending and heard & {"answer", "message"}:
            writer.move(Move.WAKE)
            if standby is not None and _can_begin(state, drafts, standby):
                writer.begin(writer.opened)
        elif "answer" in heard:
            writer.rest(requires_action(writer.state.pending))
    return writer.change(before=state)


def create(state: State, spec: Spec, drafts: Sequence[Draft], moment: Moment) -> Change:
    """A new session with its first inputs; that it got another place than it was to get is said first."""
    first = note(state, [_fallback(spec, moment)] if spec.fell_back else [], moment)
    change = admit(first.state, drafts, moment, len(drafts))
    return Change(change.state, first.entries + change.entries, change.opened, change.consumed)


def _fallback(spec: Spec, moment: Moment) -> Draft:
    fields = {"sandbox": spec.sandbox, "trust_level": spec.trust_level}
    id = moment.new_id()
    return Draft.of("roost.fallback_taken", id, fallback=spec.sandbox_fallback, **fields)


def _heard(
    writer: LedgerWriter, drafts: Sequence[Draft], waiting: Sequence[Entry]
) -> set[str | None]:
    """What kinds of things were said since the last interrupt."""
    heard: set[str | None] = set()
    for draft in drafts:
        if draft.type == "user.interrupt":
            writer.interrupt(draft, waiting)
            heard.clear()
        else:
            heard.add(writer.hear(draft))
    return heard


def _can_begin(state: State, drafts: Sequence[Draft], standby: Standby) -> bool:
    """Whether nothing but these drafts is to be done, and by nobody but who stands by for it."""
    lease = standby.lease
    owned = (state.owner, state.generation) == (lease.node, lease.generation)
    at_rest = state.turn is None and not state.pending and not state.queued
    said = all(draft.type in KEPT_WAITING for draft in drafts)
    return owned and at_rest and said and state.head == standby.seen


def _check_reserve(state: State, drafts: Sequence[Draft], over: int) -> None:
    """A full queue must not lock out what empties it: an interrupt, or the answer it waits behind."""
    if over > _RESERVE or any(draft.type in KEPT_WAITING for draft in drafts):
        raise QueueFull(
            f"{state.queued} slots of the session's queue are taken, and these inputs do not fit"
        )


def work(state: State, lease: Lease, batch: Batch, moment: Moment) -> Change:
    """What a runner did. :raises LeaseLost: the session was claimed by another since."""
    _fence(state, lease)
    return _written(state, batch, moment).change(before=state)


def rest(
    state: State,
    lease: Lease,
    seen: int,
    batch: Batch,
    stop_reason: dict[str, Any],
    moment: Moment,
    *,
    keep: bool,
) -> Change | None:
    """The session goes idle, if nothing was written since `seen`; None if something was.

    If an interrupt has brought it there already, only the lease may end.

    :raises LeaseLost: the session was claimed by another since
    """
    _fence(state, lease)
    if state.head != seen:
        return None
    if state.status is Status.IDLE:
        return Change(replace(state, owner=state.owner if keep else None), [])
    if batch.budget:  # a session that was made before its state had it
        state = replace(state, budget=batch.budget)
    writer = _written(state, batch, moment)
    writer.move(Move.REST)
    writer.rest(stop_reason)
    suspended = batch.turn is TurnMark.SUSPEND
    over = not (suspended or writer.state.pending)
    writer.state = replace(
        writer.state,
        turn=state.turn if suspended else None,
        turned=writer.head if over else 0,
        owner=state.owner if keep else None,
        limited=stop_reason["type"] == "budget_reached",
    )
    return writer.change()


def take(state: State, node: str) -> State:
    """The session as the node's: from here on no older runner can write to it."""
    return replace(state, owner=node, generation=state.generation + 1)


def give_back(state: State, lease: Lease) -> State:
    """The session as nobody's, for the next claim; unchanged if it was claimed meanwhile."""
    if (state.owner, state.generation) != (lease.node, lease.generation):
        return state
    return replace(state, owner=None)


def close(state: State, moment: Moment) -> Change:
    """Archive: terminated for good, still readable. Again: nothing changes.

    :raises SessionBusy: it runs
    """
    if state.archived_at is not None:
        return Change(state, [])
    if state.status in (Status.RUNNING, Status.RESCHEDULING):
        raise SessionBusy("a session cannot be archived while its status is running")
    writer = LedgerWriter(replace(state, archived_at=moment.now), moment)
    if state.status is not Status.TERMINATED:
        writer.end()
    return writer.change()


def leave(state: State) -> None:
    """Delete: allowed unless it works. :raises SessionBusy: it runs"""
    if state.status in (Status.RUNNING, Status.RESCHEDULING):
        raise SessionBusy("a session cannot be deleted while its status is running")


def note(state: State, drafts: Sequence[Draft], moment: Moment, *, wakes: bool = False) -> Change:
    """Entries about the session that settle nothing, such as `session.updated`.

    If it `wakes` for them, it goes on with what it had to leave: a turn, or inputs that wait.
    """
    writer = LedgerWriter(state, moment)
    for draft in drafts:
        writer.write(draft)
    left = state.turn is not None or state.queued
    if wakes and left and state.status is Status.IDLE and not state.pending:
        writer.move(Move.WAKE)
    return writer.change()


def rewind(
    state: State, seen: int, to: int, mark: int, was: str | None, draft: Draft, moment: Moment
) -> Change:
    """The conversation goes on from an earlier place; the draft says so. See `domain.rewinds.Rewind`.

    :raises SessionClosed: it is terminated
    :raises SessionBusy: it runs, or waits for somebody
    :raises Conflict: something was written since `seen`
    """
    check_rest(state)
    if state.head != seen:
        raise Conflict("something has happened in the session since")
    writer = LedgerWriter(state, moment)
    at = writer.write(draft).seq
    rewinds = (*state.rewinds, Rewind(at, to, mark, was))
    writer.state = replace(writer.state, rewinds=rewinds, turn=None, turned=0)
    return writer.change()


def check_rest(state: State) -> None:
    """Whether a session can be rewound now.

    :raises SessionClosed: it is terminated :raises SessionBusy: it is not idle
    """
    if state.status is Status.TERMINATED:
        raise SessionClosed("a session that is terminated cannot be rewound")
    if state.status is not Status.IDLE:
        raise SessionBusy("a session cannot be rewound while its status is running")
    if state.pending or state.queued:
        raise SessionBusy("a session cannot be rewound while it waits for an answer, or has inputs")


def begin(
    state: State, copied: int, drafts: Sequence[Draft], moment: Moment, *, rests: bool
) -> Change:
    """A session whose log begins with so many entries of another's, and says where they are from.

    Its log ends at rest: unless the copied part does (`rests`), that is added.
    """
    writer = LedgerWriter(replace(state, head=copied, generation=1), moment)
    if not rests:
        writer.rest({"type": "end_turn"})
    for draft in drafts:
        writer.write(draft)
    return writer.change()


def requires_action(pending: Iterable[Pending]) -> dict[str, Any]:
    """The stop reason of a session that waits for somebody."""
    return {"type": "requires_action", "event_ids": [p.event_id for p in pending]}


def _fence(state: State, lease: Lease) -> None:
    if (state.owner, state.generation) != (lease.node, lease.generation):
        raise LeaseLost(
            f"{lease.session_id} is at generation {state.generation}, not {lease.generation}"
        )


def _written(state: State, batch: Batch, moment: Moment) -> LedgerWriter:
    writer = LedgerWriter(state, moment)
    move, mark = batch.move, batch.turn
    if mark is TurnMark.BEGIN:
        writer.begin(batch.takes)
    else:
        if mark is TurnMark.END:
            writer.state = replace(writer.state, turn=None)
        writer.consume(batch.takes)
    if move is Move.RECOVER:
        writer.move_if_it_can(move)  # said before the output that shows it
    for draft in batch.drafts:
        writer.write(draft)
    if move is Move.RETRY:
        writer.move_if_it_can(move)  # said after the error that caused it
    if batch.reckons:  # else the state stays the same object, as `Change.only_counts` has it
        _reckon(writer, batch)
    if move is Move.END:
        writer.end()
    return writer


def _reckon(writer: LedgerWriter, batch: Batch) -> None:
    """Note what the session waits for after this batch, and what it has used."""
    gone = set(batch.unblocks)
    writer.close_calls([p for p in writer.state.pending if p.event_id in gone], "interrupted")
    state = writer.state
    kept = tuple(p for p in state.pending if p.event_id not in gone)
    writer.state = replace(
        state,
        pending=kept + tuple(batch.blocks),
        usage=state.usage.plus(batch.spent) if batch.spent else state.usage,
        spent=state.spent.plus(batch.counted) if batch.counted else state.spent,
    )
