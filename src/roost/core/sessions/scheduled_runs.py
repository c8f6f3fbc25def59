"""Runs of records that can have a schedule: each makes one session. What is written, in this order:

1. the claim: the record is due at its next time, and the time that has come has its run, `open`, in one commit;
2. the session with its first inputs, under a receipt of the run's id;
3. what came of it: the session's id or the error, and with an error that would come again, the pause.

Killed before 1, the next look claims. Killed between any two, whoever takes the open run next goes on: 2 again is the
same session, and 3 happens once, because it is written only while the run is open. A run by hand begins with its row
and goes on with 2.

What differs between kinds of records, deployments and tasks, is in their own classes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from roost.core.access.keys import Keyring
from roost.core.records.timetable import schedule_of
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.sessions.run_faults import RunFaults, fault_of
from roost.core.write.intake import Intake
from roost.domain import schedule
from roost.domain.deployment import Fault
from roost.domain.events import Micros
from roost.domain.schedule import SECOND, Occurrence
from roost.domain.session import Session, Status, TrustLevel, reaches
from roost.errors import (
    BlobsFailed,
    InvalidRequest,
    NotFound,
    RoostError,
    SandboxFailed,
    SessionClosed,
    Unavailable,
)
from roost.ports.catalog import Kind, Record
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.runs import NOT_YET, Planned, Run, RunQuery, Runs

LEASE_SECONDS: Final = 60
"""How long one who has taken a run may take, before others try."""

_PLAN_AGAIN: Final = 3600 * SECOND
_PATIENCE: Final = 3600 * SECOND
"""How long a run waits for a sandbox or a store that is away, before it counts as failed."""

_PASSING: Final = (Unavailable, SandboxFailed, BlobsFailed)
_log = logging.getLogger(__name__)


class RunParts(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of every kind need. `jitter`: within how many seconds after its time a run starts."""

    runs: Runs
    lifecycle: Lifecycle
    keyring: Keyring
    faults: RunFaults
    intake: Intake
    clock: Callable[[], Micros]
    jitter: float


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that failed means for its record."""

    change: Callable[[Record], dict[str, Any]] | None = None
    pauses: bool = False
    archive: bool = False


class ScheduledRuns(ABC):
    """Starts sessions for one kind of record, and follows them."""

    kind: ClassVar[Kind]
    prefix: ClassVar[str]
    follow_again: ClassVar[Micros]

    def __init__(self, parts: RunParts) -> None:
        self._runs = parts.runs
        self._lifecycle = parts.lifecycle
        self._keyring = parts.keyring
        self._faults = parts.faults
        self._intake = parts.intake
        self._clock = parts.clock
        self._jitter = parts.jitter

    # What is different

    @abstractmethod
    async def record_of(self, run: Run) -> Record:
        """What it is a run of. :raises NotFound: it was deleted"""

    @abstractmethod
    def noted(self, record: Record) -> dict[str, Any]:
        """What a run of it notes besides who it acts for."""

    @abstractmethod
    async def look(self, caller: Key, run: Run, record: Record) -> Fault | None:
        """What it refers to that is gone. :raises RoostError:"""

    @abstractmethod
    async def make(self, caller: Key, run: Run, record: Record) -> Session:
        """Its session, the same one each time. :raises RoostError:"""

    @abstractmethod
    async def has_started(self, run: Run, record: Record) -> bool:
        """Write that it has its session. False: somebody else has."""

    @abstractmethod
    def has_failed(self, run: Run, fault: Fault, *, passing: bool) -> Consequence:
        """What it means that it has no session. `passing`: another one may have."""

    @abstractmethod
    async def follow(self, run: Run, record: Record, session: Session | None) -> bool:
        """Look whether its session rests, and write that; None: it was deleted. True: it works on."""

    # Times

    def plan(self, record: Record, unfinished: Sequence[Run], now: Micros) -> Planned:
        """What the times that have come lead to. Pure."""
        due_at = record.due_at
        try:
            when = None if record.body["paused_reason"] else schedule_of(record.body)
        except InvalidRequest as error:  # a zone that this machine does not know any more
            _log.warning("%s %s: %s", self.kind, record.id, error.message, extra={"action": "run"})
            return Planned(now + _PLAN_AGAIN)
        if when is None or due_at is None:
            return Planned(None)
        queued = [run for run in unfinished if run.state == "queued"]
        decision = schedule.decide(
            when, due_at, now, busy=len(unfinished) > len(queued), queued=bool(queued)
        )
        dropped = [_skipped(run, now) for run in queued] if decision.drops_queue else []
        made = [self._occurring(record, each, now) for each in decision.occurrences]
        return Planned(decision.next, made, dropped)

    def next(self, record: Record, now: Micros) -> Micros | None:
        """The next time of its schedule. Pure. :raises InvalidRequest: this machine does not know its zone"""
        when = None if record.body["paused_reason"] else schedule_of(record.body)
        return None if when is None else when.next(now)

    def _occurring(self, record: Record, what: Occurrence, now: Micros) -> Run:
        key_id, ceiling = record.body["key_id"], record.ceiling or "sandboxed"
        starts = max(now, schedule.jittered(record.id, what.at, self._jitter))
        look_at = {"open": starts, "queued": NOT_YET, "skipped": 0}[what.state]
        run = self.new_run(
            record, f"at:{what.at}", key_id, record.created_by, ceiling, look_at=look_at
        )
        more: dict[str, Any] = {"claimed_at": now}
        if what.state == "skipped":
            more |= {"reason": what.reason, "since": what.since, "count": what.count}
        return replace(
            run,
            state=what.state,
            scheduled_at=what.at,
            ended_at=now if what.state == "skipped" else None,
            body=run.body | more,
        )

    def new_run(
        self,
        record: Record,
        slot: str,
        key_id: str,
        principal: str,
        ceiling: TrustLevel,
        *,
        look_at: Micros,
    ) -> Run:
        """An open run. Its id follows from what it is for: made again, it is the same."""
        return Run(
            id=f"{self.prefix}_{sha256(f'{record.id} {slot}'.encode()).hexdigest()[:32]}",
            tenant=record.tenant,
            kind=record.kind,
            owner=record.id,
            created_by=record.created_by,
            slot=slot,
            state="open",
            look_at=look_at,
            body={
                **self.noted(record),
                "key_id": key_id,
                "principal": principal,
                "ceiling": lower(ceiling, record.ceiling or "sandboxed"),
            },
        )

    # To its session

    async def advance(self, run: Run) -> None:
        """Take a run as far as it goes. What fails for now is tried again by whoever takes it next."""
        try:
            record = await self.record_of(run)
        except NotFound:
            return  # it was deleted, and its runs with it
        if run.state == "open":
            with suppress(RoostError):  # which is written, or logged
                await self.begin(run, record)
        elif run.state == "started" and run.look_at and run.session_id is not None:
            await self._follow(run, record, run.session_id)

    async def begin(self, run: Run, record: Record) -> None:
        """Make the session of an open run. :raises RoostError: why there is none, which is written if it stays so"""
        by_hand = run.scheduled_at is None
        try:
            caller = await self._actor(run)
            if (fault := await self.look(caller, run, record)) is not None:
                await self._failed(run, fault)
                raise InvalidRequest(fault["message"])
            session = await self.make(caller, run, record)
        except _PASSING as error:
            if not by_hand and self._clock() < run.body["claimed_at"] + _PATIENCE:
                _log.warning("run %s: %s", run.id, error.message, extra={"action": "run"})
                raise
            fault = {"type": "unknown_error", "message": error.message}
            await self._failed(run, fault, passing=True)
            raise
        except RoostError as error:
            await self._failed(run, fault_of(error))  # once only, if there was a fault
            raise
        started = replace(run, state="started", session_id=session.id, started_at=self._clock())
        if await self.has_started(started, record):
            about = {"action": "run", "session": session.id}
            _log.info("run %s of %s: started", run.id, run.owner, extra=about)

    async def _actor(self, run: Run) -> Key:
        """The key that it acts with, trusted no further than when it was claimed. :raises Unauthenticated:"""
        body = run.body
        key = await self._keyring.acting_for(run.tenant, body["key_id"], body["principal"])
        return replace(key, trust_ceiling=lower(key.trust_ceiling, body["ceiling"]))

    async def _failed(self, run: Run, fault: Fault, *, passing: bool = False) -> None:
        now = self._clock()
        body = {**run.body, "error": fault}
        after = replace(run, state="failed", ended_at=now, look_at=0, body=body)
        means = self.has_failed(run, fault, passing=passing)
        settled = await self._runs.settle(
            after, "open", change=means.change, pauses=means.pauses, archive=means.archive
        )
        if settled:
            _log.warning(
                "run %s of %s: %s: %s",
                *(run.id, run.owner, fault["type"], fault["message"]),
                extra={"action": "run"},
            )

    # To its session's rest

    async def _follow(self, run: Run, record: Record, session_id: str) -> None:
        try:
            session = await self._lifecycle.get(run.tenant, session_id)
        except NotFound:
            session = None  # it was deleted, which is allowed only when it rests
        if not await self.follow(run, record, session) or session is None:
            return
        if record.body["overlap"] == "replace":
            await self._replace(run, session)

    async def _replace(self, run: Run, session: Session) -> None:
        """Interrupt it, once, if another run waits for its end."""
        query = RunQuery(
            kind=self.kind, tenant=run.tenant, owner=run.owner, states=["queued"], limit=1
        )
        for waiting in await self._runs.page(query):
            receipt = Receipt(f"replaced:{waiting.id}", "")
            with suppress(SessionClosed):  # it has ended by itself
                await self._intake.accept(session.id, [new_draft("user.interrupt")], [receipt])


def _skipped(run: Run, now: Micros) -> Run:
    """A run that waited, and is not needed any more."""
    body = {**run.body, "reason": "replaced", "since": None, "count": 1}
    return replace(run, state="skipped", look_at=0, ended_at=now, body=body)


def rests(session: Session) -> bool:
    """Whether it works no more, and waits for no answer."""
    state = session.state
    return state.status is Status.TERMINATED or (state.status is Status.IDLE and not state.pending)


def lower(one: TrustLevel, other: TrustLevel) -> TrustLevel:
    """The lower of two levels."""
    return other if reaches(one, other) else one
