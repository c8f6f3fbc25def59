"""A work item: that one session of a self-hosted environment needs a worker, and which worker has it.

queued ──poll, ack──▶ starting ──heartbeat──▶ active ──stop──▶ stopping
  ▲                      │                       │                │
  ├──── lease is over ───┴───────────────────────┴────────────────┤
  └──── still needed ──────────────── stopped ◀──── forced stop ──┘

A worker that gives it back while its session waits for somebody else alone, a permission or a custom tool of the
application's, has nothing to do: for a permission nobody gets it before the turn that this begins; a custom tool may be
another worker's, so it is offered again, after pauses that grow as long as nothing happens.

There is one for each session. Stopped and needed again, it is the same record with the next `number`, so that
nothing lies between the end of one and the beginning of the next. So it is when it is offered to another worker: what
an earlier one knows it by does not name it any more, whichever credential that worker uses. Each poll that hands it
out raises `claim`: what a worker was given for an earlier one no longer counts, but for results that it brings late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from roost.domain.agent import merged
from roost.domain.events import Micros
from roost.domain.session import Session, Status

NO_HEARTBEAT: Final = "NO_HEARTBEAT"
"""What a worker expects as the last heartbeat when it sends its first."""

RECLAIMED_AFTER: Final[Micros] = 5_000_000
"""One that was handed out and is not acknowledged is handed out again after so long, unless a poll says otherwise."""

KEPT: Final[Micros] = 30 * 86400 * 1_000_000
"""How long one that is stopped can be read."""

LATE: Final[Micros] = 15 * 60 * 1_000_000
"""How long a worker may still bring results of one that is not its own any more."""

_PAUSES: Final[tuple[Micros, ...]] = tuple(n * 60_000_000 for n in (0, 1, 2, 4, 8, 16))
"""How long it is not offered after it was given back once, twice, … with nothing done in between."""

_REPEATED: Final[Micros] = 60_000_000
"""How long a heartbeat may come a second time, because its answer was lost."""

ClosedBy = Literal["interrupted", "worker_lost", "session_ended"]
"""Why a call has a result that no worker has brought."""

CLOSED: Final[Mapping[ClosedBy, str]] = {
    "interrupted": "Interrupted. A worker may have begun this call by then, or even ended it: its outcome is unknown.",
    "worker_lost": "The worker that had this call was lost. Nobody knows whether the call ran, or how it ended: its "
    "outcome is unknown. Find out before you repeat it.",
    "session_ended": "The session has ended. A worker may have begun this call by then: its outcome is unknown.",
}
"""What such a result says."""

REPEATABLE: Final = frozenset({"read", "glob", "grep"})
"""Tools that change nothing: a call that a worker was lost with is left to the next."""

WorkState = Literal["queued", "starting", "active", "stopping", "stopped"]
Standing = Literal["has", "had"]
"""What a worker is to an item: it has it, or had it until lately, and may still bring results."""

_LEASED: Final = ("starting", "active", "stopping")


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is its session: what it is found by. `wanted` rises when the session has work: whoever is about to stop
    the item has to look again. `heartbeat` is what the worker echoes, and `repeated` what it was before. `by_key`:
    that was sent with the environment's key, and not with the item's token. `given_back` is how often that was done since
    a turn began, and `not_before` when it is offered again. `ended_claim` is the last claim that is over, since `ended_at`. If that is the newest one, nobody has the item.
    """

    name: str
    environment_id: str
    created_at: Micros
    lease: Micros
    number: int = 1
    claim: int = 0
    wanted: int = 0
    state: WorkState = "queued"
    metadata: dict[str, str] = {}
    claimed_at: Micros | None = None
    acknowledged_at: Micros | None = None
    started_at: Micros | None = None
    heartbeat_at: Micros | None = None
    stop_requested_at: Micros | None = None
    stopped_at: Micros | None = None
    heartbeat: str | None = None
    repeated: str | None = None
    by_key: bool = False
    given_back: int = 0
    not_before: Micros = 0
    ended_claim: int = 0
    ended_at: Micros = 0

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> WorkItem:
        """The item of a record's body."""
        item = msgspec.convert(body, cls)
        if "ended_claim" not in body and item.is_nobodys:
            # From before that was noted: nobody has it.
            return replace(item, ended_claim=item.claim, ended_at=item.stopped_at or 0)
        return item

    def body(self) -> dict[str, Any]:
        """What a record of it has."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        return body

    @property
    def id(self) -> str:
        """What clients call it."""
        return f"{record_id(self.name)}.{self.number}"

    @property
    def due_at(self) -> Micros:
        """When something is to be done about it: hand it out, notice that its worker is lost, or forget it."""
        if self.state == "queued":
            offered = max(self.created_at, self.not_before)
            return offered if self.claimed_at is None else self.claimed_at + RECLAIMED_AFTER
        if self.state == "stopped":
            return (self.stopped_at or 0) + KEPT
        if self.is_taken_away:
            return self.ended_at
        return (self.heartbeat_at or self.acknowledged_at or 0) + self.lease

    @property
    def is_leased(self) -> bool:
        """Whether a worker has it, or had it until it was taken away."""
        return self.state in _LEASED

    @property
    def is_nobodys(self) -> bool:
        """Whether it is over, or waits for a worker and was not handed out."""
        return self.state == "stopped" or (self.state == "queued" and self.claimed_at is None)

    @property
    def is_taken_away(self) -> bool:
        """Whether its worker has it no more, and nobody has looked yet at what it may have begun."""
        return self.is_leased and self.ended_claim == self.claim

    def is_lost(self, now: Micros) -> bool:
        """Whether a worker has it that has not been heard of in time, or had it until it was taken away."""
        return self.is_leased and self.due_at <= now

    def is_to_be_forgotten(self, now: Micros) -> bool:
        """Whether it was stopped so long ago that nobody can read it any more."""
        return self.state == "stopped" and self.due_at <= now

    def standing_of(self, claim: int, now: Micros) -> Standing | None:
        """What whoever was given this claim is to the item."""
        if claim == self.claim and claim != self.ended_claim:
            return "has"
        return "had" if claim == self.ended_claim and self.ended_at + LATE > now else None

    def can_be_claimed(self, now: Micros, reclaim: Micros) -> bool:
        """Whether a poll may hand it out."""
        since = self.not_before if self.claimed_at is None else self.claimed_at + reclaim
        return self.state == "queued" and since <= now

    # What happens to it

    def claimed(self, now: Micros) -> WorkItem:
        """Handed out by a poll; if it was before, under another id."""
        number = self.number if self.claimed_at is None else self.number + 1
        return replace(self._let_go(now), number=number, claim=self.claim + 1, claimed_at=now)

    def acknowledged(self, lease: Micros, now: Micros) -> WorkItem:
        """Taken by a worker. Again: nothing changes, since nobody knows who asks."""
        if self.state != "queued":
            return self
        return replace(self, state="starting", acknowledged_at=now, lease=lease)

    def accepts(self, expected: str | None, now: Micros) -> bool:
        """Whether a heartbeat is the next of whoever has it, or the last one once more."""
        if self.state not in ("starting", "active"):
            return False
        if expected is None or expected == (self.heartbeat or NO_HEARTBEAT):
            return True
        recent = (self.heartbeat_at or 0) + _REPEATED > now
        return recent and expected == self.repeated

    def beaten(self, heartbeat: str, lease: Micros, now: Micros, *, by_key: bool) -> WorkItem:
        """Its worker is there."""
        return replace(
            self,
            state="active" if self.state == "starting" else self.state,
            started_at=self.started_at or now,
            heartbeat_at=now,
            repeated=self.heartbeat or NO_HEARTBEAT,
            heartbeat=heartbeat,
            lease=lease,
            by_key=by_key,
        )

    def asked_to_stop(self, now: Micros) -> WorkItem:
        """Its worker is told with its next heartbeat."""
        return replace(self, state="stopping", stop_requested_at=self.stop_requested_at or now)

    def taken_away(self, now: Micros) -> WorkItem:
        """Its worker has it no more: what that may have begun is to be looked at before anybody else gets it."""
        return self._let_go(now) if self.is_leased else self

    def stopped(self, now: Micros) -> WorkItem:
        """Nobody has it, and nobody needs it."""
        return replace(self._let_go(now), state="stopped", stopped_at=now)

    def _let_go(self, now: Micros) -> WorkItem:
        if self.ended_claim == self.claim:
            return self
        return replace(self, ended_claim=self.claim, ended_at=now)

    def wanted_again(self, now: Micros) -> WorkItem:
        """A turn of its session has begun: it is offered at once."""
        item = self.again(now) if self.state == "stopped" else self
        return replace(item, wanted=item.wanted + 1, given_back=0, not_before=0)

    def returned(self, now: Micros) -> WorkItem:
        """Another one for the same session, which has nothing for the worker that gave this one back."""
        pause = _PAUSES[min(self.given_back, len(_PAUSES) - 1)]
        return replace(self.again(now), given_back=self.given_back + 1, not_before=now + pause)

    def again(self, now: Micros) -> WorkItem:
        """Another one for the same session: this one is over."""
        return WorkItem(
            name=self.name,
            environment_id=self.environment_id,
            created_at=now,
            lease=self.lease,
            number=self.number + 1,
            claim=self.claim,
            wanted=self.wanted,
            given_back=self.given_back,
            ended_claim=self.ended_claim,
            ended_at=self.ended_at,
        )

    def offered_again(self, now: Micros) -> WorkItem:
        """For the next worker, because this one's is lost."""
        return replace(self.again(now), created_at=self.created_at, metadata=self.metadata)

    def patched(self, metadata: Mapping[str, str | None]) -> WorkItem:
        """With other metadata: null deletes."""
        return replace(self, metadata=merged(self.metadata, metadata))


def record_id(session_id: str) -> str:
    """What the record of a session's work item is called."""
    return f"work_{session_id.removeprefix('sesn_')}"


def parts_of(work_id: str) -> tuple[str, int]:
    """The record's id and the number in what clients call an item; the number is 0 if there is none."""
    record, _, number = work_id.rpartition(".")
    return record, int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0


def waits_for_worker(session: Session) -> bool:
    """Whether a call of the session is a worker's to make, as soon as it is allowed."""
    return any(pending.by_worker for pending in session.state.pending)


def needs_worker(session: Session) -> bool:
    """Whether the session has something for a worker to do, or may have soon."""
    status = session.state.status
    at_work = status in (Status.RUNNING, Status.RESCHEDULING)
    waits = any(pending.by_worker or pending.offered for pending in session.state.pending)
    return status is not Status.TERMINATED and (at_work or waits)


def after_return(item: WorkItem, session: Session | None, now: Micros) -> WorkItem:
    """A stopped item that its worker has given back: offered again, now or later, or not."""
    if session is None or not needs_worker(session):
        return item
    if session.state.status is not Status.IDLE or "tool" in _kinds(session):
        return item.again(now)
    # A permission begins a turn, which wants it.
    return item.returned(now) if any(each.offered for each in session.state.pending) else item


def _kinds(session: Session) -> list[str]:
    return [pending.kind for pending in session.state.pending]
