"""Starts what has a schedule, when it is time, on whichever node looks first.

Two loops: one claims times that have come, which is quick, and one takes runs as far as they go, which may take long.
Both sleep until the next time that the database knows of, and look again after a few seconds in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import anyio
from anyio.abc import TaskStatus

from roost.core.concurrency import a_few_at_once
from roost.core.records.timetable import SCHEDULES
from roost.core.sessions.scheduled_runs import LEASE_SECONDS
from roost.domain.events import Micros
from roost.domain.schedule import SECOND
from roost.errors import RoostError
from roost.ports.catalog import Catalog, Kind, Record
from roost.ports.notifier import Notifier
from roost.ports.runs import Planned, Run, RunQuery, Runs

_RUNS: Final = "runs"
"""The topic that is notified when there are runs to look at."""

_LOOK_AGAIN: Final = 5.0
_PAGE: Final = 100
_AT_ONCE: Final = 8
_CLAIMS_AT_ONCE: Final = 4
_STEP_BACK: Final = 60 * SECOND
"""A clock that is this far behind what it was has been put right; less is adjusted now and then."""

_FAR: Final = 3600 * SECOND
"""What is due within this time is left as it is: after that it is planned by the right clock anyway."""

_log = logging.getLogger(__name__)


class Scheduled(Protocol):
    """A kind of record that can have a schedule."""

    @property
    def kind(self) -> Kind:
        """What such records are."""
        ...

    def plan(self, record: Record, unfinished: Sequence[Run], now: Micros) -> Planned:
        """What the times that have come lead to. Pure."""
        ...

    def next(self, record: Record, now: Micros) -> Micros | None:
        """The next time of its schedule. Pure. :raises InvalidRequest: this machine does not know its zone"""
        ...

    async def advance(self, run: Run) -> None:
        """Take a run as far as it goes."""
        ...


class Scheduler:
    """Claims times, and takes runs to their sessions."""

    def __init__(
        self,
        catalog: Catalog,
        runs: Runs,
        notifier: Notifier,
        kinds: Sequence[Scheduled],
        clock: Callable[[], Micros],
    ) -> None:
        self._catalog = catalog
        self._runs = runs
        self._notifier = notifier
        self._kinds = {each.kind: each for each in kinds}
        self._clock = clock
        self._latest: Micros | None = None

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Go on for ever."""
        async with anyio.create_task_group() as loops:
            await loops.start(self._loop, SCHEDULES, self.claim_all)
            await loops.start(self._loop, _RUNS, self.advance_all)
            task_status.started()

    async def _loop(
        self, topic: str, look: Callable[[], Awaitable[float]], *, task_status: TaskStatus[None]
    ) -> None:
        with self._notifier.subscribe(topic) as subscription:
            task_status.started()
            while True:
                wait = _LOOK_AGAIN
                try:
                    wait = await look()
                except RoostError as error:
                    _log.warning("schedules: %s", error.message, extra={"action": "schedule"})
                await subscription.wait(wait)
                subscription.notified()

    # Times that have come

    async def claim_all(self) -> float:
        """Claim every time that has come. Gives the seconds until the next one, as far as that is known."""
        wait = _LOOK_AGAIN
        for kind in self._kinds:
            wait = min(wait, await self._claim_kind(kind))
        now = self._clock()
        if self._clock_was_ahead(now):
            await self._plan_all_anew()
        self._latest = now  # not before: what fails is tried again
        return wait

    async def _claim_kind(self, kind: Kind) -> float:
        # What had come when the look began is not late because claiming all of it takes long.
        horizon, now = int(_LOOK_AGAIN * SECOND), self._clock()
        while True:
            found = await self._catalog.due(kind, now + horizon, limit=_PAGE)
            due = [record for record in found if record.due_at is not None and record.due_at <= now]
            claimed = await self._claim_each(due, now)
            if len(due) < len(found):
                return max(0.0, ((found[len(due)].due_at or now) - self._clock()) / SECOND)
            if len(found) < _PAGE or not any(claimed):
                return _LOOK_AGAIN

    async def _claim_each(self, due: Sequence[Record], now: Micros) -> list[bool]:
        """Several at once: each is a few answers of a database, which may be slow to come."""
        claimed: list[bool] = []

        async def claim(record: Record) -> None:
            claimed.append(await self.claim(record, now))

        async with a_few_at_once(_CLAIMS_AT_ONCE) as start:
            for record in due:
                await start(partial(claim, record))
        return claimed

    async def claim(self, record: Record, now: Micros) -> bool:
        """Claim the times of one record that have come. False: it failed, which is logged and nobody else's
        concern; it stays due.
        """
        plan = partial(_plan_at, self._kinds[record.kind], now)
        try:
            made = await self._runs.claim(record.kind, record.tenant, record.id, now, plan)
            if any(run.state == "queued" for run in made):
                await self._look_at_working(made[-1])
        except RoostError as error:
            _log.warning("%s: %s", record.id, error.message, extra={"action": "schedule"})
            return False
        except Exception:  # noqa: BLE001 - a fault in one of many schedules must not end the server
            _log.exception("%s cannot be scheduled", record.id, extra={"action": "schedule"})
            return False
        if made:
            self._notifier.notify(_RUNS)
        return True

    # After a clock that was ahead

    def _clock_was_ahead(self, now: Micros) -> bool:
        """Whether the clock is behind what it was at the last look; at the first one nobody knows, so it may be."""
        return self._latest is None or now < self._latest - _STEP_BACK

    async def _plan_all_anew(self) -> None:
        """Records that were planned too late, by a clock that was ahead, are due at their next time again."""
        for kind in self._kinds:
            before = None
            while True:
                found = await self._catalog.every(kind, before=before, limit=_PAGE)
                for record in found:
                    await self._plan_anew(record)
                if len(found) < _PAGE:
                    break
                before = found[-1].id

    async def _plan_anew(self, record: Record) -> None:
        now, planned = self._clock(), record.due_at
        if planned is None or planned <= now + _FAR:
            return
        try:
            due_at = self._kinds[record.kind].next(record, now)
        except RoostError:
            return  # who knows its zone plans it
        if due_at is None or due_at >= planned:
            return
        # As a time is claimed: who has changed the record meanwhile has planned it by the right clock.
        await self._runs.claim(
            *(record.kind, record.tenant, record.id, planned), lambda *_: Planned(due_at)
        )
        _log.info("%s is planned anew", record.id, extra={"action": "schedule"})

    # Runs that wait for others

    async def _look_at_working(self, waiting: Run) -> None:
        """Those that a new run waits for: one of them may be over already, or has to be interrupted."""
        query = RunQuery(
            kind=waiting.kind, tenant=waiting.tenant, owner=waiting.owner, states=["started"]
        )
        for run in await self._runs.page(query):
            if run.look_at:
                await self._advance(run)

    # Runs

    async def advance_all(self) -> float:
        """Take every run as far as it goes that has to be looked at. Gives the seconds until the next look."""
        while True:
            now, least = self._clock(), await self._runs.least_look()
            if least is None or least > now:
                left = _LOOK_AGAIN if least is None else (least - now) / SECOND
                return min(_LOOK_AGAIN, left)
            taken = await self._runs.take(now, now + LEASE_SECONDS * SECOND, limit=_PAGE)
            async with a_few_at_once(_AT_ONCE) as start:
                for run in taken:
                    await start(partial(self._advance, run))

    async def _advance(self, run: Run) -> None:
        """One run. What fails, or takes too long, is tried again when its time is up."""
        about = {"action": "run"}
        try:
            with anyio.move_on_after(LEASE_SECONDS) as patience:
                await self._kinds[run.kind].advance(run)
            if patience.cancelled_caught:
                _log.warning("run %s takes too long; it is tried again", run.id, extra=about)
        except RoostError as error:
            _log.warning("run %s: %s", run.id, error.message, extra=about)
        except Exception:  # noqa: BLE001 - a fault in one of many runs must not end the server
            _log.exception("run %s failed", run.id, extra=about)


def _plan_at(kind: Scheduled, now: Micros, record: Record, unfinished: Sequence[Run]) -> Planned:
    return kind.plan(record, unfinished, now)
