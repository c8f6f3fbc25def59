"""Runs of deployments: each makes one session. What is written, in this order:

1. the claim: the deployment is due at its next time, and the time that has come has its run, `open`, in one commit;
2. the session with its first inputs, under a receipt of the run's id;
3. what came of it: the session's id or the error, and with an error that would come again, the pause.

Killed before 1, the next look claims. Killed between any two, whoever takes the open run next goes on: 2 again is the
same session, and 3 happens once, because it is written only while the run is open. A run by hand begins with its row
and goes on with 2.

A run is followed to its session's rest only if the deployment says what is to happen meanwhile (`overlap`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from roost.core.access.keys import Keyring
from roost.core.access.permissions import may_see
from roost.core.sessions.deployments import Deployments, drafts_of, schedule_of
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.sessions.run_faults import RunFaults, fault_of
from roost.core.write.intake import Intake
from roost.domain import deployment, schedule
from roost.domain.deployment import Body, Fault
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
from roost.ids import mint
from roost.ports.catalog import Record
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.runs import NOT_YET, Planned, Run, RunQuery, Runs

LEASE_SECONDS: Final = 60
"""How long one who has taken a run may take, before others try."""

_FOLLOW_AGAIN: Final = 5 * SECOND
_PLAN_AGAIN: Final = 3600 * SECOND
_PATIENCE: Final = 3600 * SECOND
"""How long a run waits for a sandbox or a store that is away, before it counts as failed."""

_PASSING: Final = (Unavailable, SandboxFailed, BlobsFailed)
_log = logging.getLogger(__name__)


class DeploymentRuns:
    """Starts sessions for deployments. `jitter`: within how many seconds after its time a run starts."""

    kind: Final = "deployment"

    def __init__(
        self,
        deployments: Deployments,
        runs: Runs,
        lifecycle: Lifecycle,
        keyring: Keyring,
        faults: RunFaults,
        intake: Intake,
        clock: Callable[[], Micros],
        *,
        jitter: float,
    ) -> None:
        self._deployments = deployments
        self._runs = runs
        self._lifecycle = lifecycle
        self._keyring = keyring
        self._faults = faults
        self._intake = intake
        self._clock = clock
        self._jitter = jitter

    async def start(self, caller: Key, deployment_id: str, key: str | None) -> Run:
        """A run by hand, also of a deployment that is paused. With a known idempotency key, the one begun then.

        :raises NotFound: :raises InvalidRequest: it is archived
        """
        record = await self._deployments.seen(caller, deployment_id)
        if record.archived_at is not None:
            raise InvalidRequest(f"deployment {deployment_id} is archived and runs no more")
        slot = f"manual:{mint('drun')}" if key is None else f"key:{caller.principal} {key}"
        look_at = self._clock() + LEASE_SECONDS * SECOND
        run = await self._runs.begin(
            _run(record, slot, caller.id, caller.principal, caller.trust_ceiling, look_at=look_at)
        )
        if run.state == "open":
            await self.advance(run)
        return await self._runs.get(self.kind, caller.tenant, run.id)

    async def seen(self, caller: Key, run_id: str) -> Run:
        """A run that has a session or an error, of a deployment that the caller may see. :raises NotFound:"""
        run = await self._runs.get(self.kind, caller.tenant, run_id)
        if not may_see(caller, run.created_by) or run.state not in ("started", "failed"):
            raise NotFound(f"run {run_id} was not found")
        return run

    async def page(self, caller: Key, query: RunQuery) -> list[Run]:
        """A page of those that the caller may see."""
        own = None if may_see(caller, "") else caller.principal
        return await self._runs.page(replace(query, created_by=own))

    def plan(self, record: Record, unfinished: Sequence[Run], now: Micros) -> Planned:
        """What the times that have come lead to. Pure."""
        due_at = record.due_at
        try:
            when = None if record.body["paused_reason"] else schedule_of(record.body)
        except InvalidRequest as error:  # a zone that this machine does not know any more
            _log.warning("deployment %s: %s", record.id, error.message, extra={"action": "run"})
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

    def _occurring(self, record: Record, what: Occurrence, now: Micros) -> Run:
        key_id, ceiling = record.body["key_id"], record.ceiling or "sandboxed"
        starts = max(now, schedule.jittered(record.id, what.at, self._jitter))
        look_at = {"open": starts, "queued": NOT_YET, "skipped": 0}[what.state]
        run = _run(record, f"at:{what.at}", key_id, record.created_by, ceiling, look_at=look_at)
        more: Body = {"claimed_at": now}
        if what.state == "skipped":
            more |= {"reason": what.reason, "since": what.since, "count": what.count}
        return replace(
            run,
            state=what.state,
            scheduled_at=what.at,
            ended_at=now if what.state == "skipped" else None,
            body=run.body | more,
        )

    # To its session

    async def advance(self, run: Run) -> None:
        """Take a run as far as it goes. What fails for now is tried again by whoever takes it next."""
        record = await self._deployments.get(run.tenant, run.owner)
        if run.state == "started":
            await self._follow(run, record)
            return
        try:
            caller = await self._actor(run)
            if (fault := await self._faults.look(caller, record.body)) is not None:
                await self._failed(run, fault, pauses=run.scheduled_at is not None)
                return
            session = await self._made(caller, run, record)
        except _PASSING as error:
            by_hand = run.scheduled_at is None
            if not by_hand and self._clock() < run.body["claimed_at"] + _PATIENCE:
                _log.warning("run %s: %s", run.id, error.message, extra={"action": "run"})
                return
            fault = {"type": "unknown_error", "message": error.message}
            await self._failed(run, fault, pauses=False)
        except RoostError as error:
            fault = fault_of(error)
            await self._failed(run, fault, pauses=run.scheduled_at is not None)
        else:
            await self._started(run, record, session)

    async def _actor(self, run: Run) -> Key:
        """The key that it acts with, trusted no further than when it was claimed. :raises Unauthenticated:"""
        body = run.body
        key = await self._keyring.acting_for(run.tenant, body["key_id"], body["principal"])
        return replace(key, trust_ceiling=_lower(key.trust_ceiling, body["ceiling"]))

    async def _made(self, caller: Key, run: Run, record: Record) -> Session:
        if record.archived_at is not None:
            raise InvalidRequest("the deployment was archived before the run began")
        asked = deployment.session_params(record.id, record.body, run.body["agent"])
        kept = record.body["resources"]
        asked["resources"] = self._lifecycle.given.opened(run.tenant, record.id, kept)
        return await self._lifecycle.create(
            caller, asked, drafts_of(record.body), Receipt(f"run:{run.id}", "")
        )

    async def _started(self, run: Run, record: Record, session: Session) -> None:
        now = self._clock()
        followed = record.body["overlap"] != "allow"
        after = replace(
            run,
            state="started",
            session_id=session.id,
            started_at=now,
            ended_at=None if followed else now,
            look_at=now + _FOLLOW_AGAIN if followed else 0,
        )
        if await self._runs.settle(after, "open"):
            about = {"action": "run", "session": session.id}
            _log.info("run %s of %s: started", run.id, run.owner, extra=about)

    async def _failed(self, run: Run, fault: Fault, *, pauses: bool) -> None:
        after = replace(
            run,
            state="failed",
            ended_at=self._clock(),
            look_at=0,
            body={**run.body, "error": fault},
        )

        def change(record: Record) -> Body:
            body = record.body
            return deployment.ended(body) if ends else deployment.failed(body, fault)

        ends = fault["type"] == deployment.ENDS
        changes = ends or (pauses and fault["type"] in deployment.PAUSES)
        await self._runs.settle(after, "open", change=change if changes else None, archive=ends)
        _log.warning(
            "run %s of %s: %s: %s",
            *(run.id, run.owner, fault["type"], fault["message"]),
            extra={"action": "run"},
        )

    # To its session's rest

    async def _follow(self, run: Run, record: Record) -> None:
        if run.session_id is None or not run.look_at:
            return
        try:
            session = await self._lifecycle.get(run.tenant, run.session_id)
        except NotFound:
            session = None  # it was deleted, which is allowed only when it rests
        now = self._clock()
        if session is None or _rests(session):
            await self._runs.settle(replace(run, look_at=0, ended_at=now), "started")
            return
        if record.body["overlap"] == "replace":
            await self._replace(run, session)
        await self._runs.settle(replace(run, look_at=now + _FOLLOW_AGAIN), "started")

    async def _replace(self, run: Run, session: Session) -> None:
        """Interrupt it, once, if another run waits for its end."""
        query = RunQuery(
            kind=self.kind, tenant=run.tenant, owner=run.owner, states=["queued"], limit=1
        )
        for waiting in await self._runs.page(query):
            receipt = Receipt(f"replaced:{waiting.id}", "")
            with suppress(SessionClosed):  # it has ended by itself
                await self._intake.accept(session.id, [new_draft("user.interrupt")], [receipt])


def _run(
    record: Record, slot: str, key_id: str, principal: str, ceiling: TrustLevel, *, look_at: Micros
) -> Run:
    """An open run. Its id follows from what it is for: made again, it is the same."""
    return Run(
        id=f"drun_{sha256(f'{record.id} {slot}'.encode()).hexdigest()[:32]}",
        tenant=record.tenant,
        kind=record.kind,
        owner=record.id,
        created_by=record.created_by,
        slot=slot,
        state="open",
        look_at=look_at,
        body={
            "agent": record.body["agent"],
            "key_id": key_id,
            "principal": principal,
            "ceiling": _lower(ceiling, record.ceiling or "sandboxed"),
        },
    )


def _skipped(run: Run, now: Micros) -> Run:
    """A run that waited, and is not needed any more."""
    body = {**run.body, "reason": "replaced", "since": None, "count": 1}
    return replace(run, state="skipped", look_at=0, ended_at=now, body=body)


def _rests(session: Session) -> bool:
    state = session.state
    return state.status is Status.TERMINATED or (state.status is Status.IDLE and not state.pending)


def _lower(one: TrustLevel, other: TrustLevel) -> TrustLevel:
    return other if reaches(one, other) else one
