"""WORK, first: claim sessions that have work, and run as many at once as this node may.

A session whose runner died is claimed like any other: nothing else has to happen for it to go on.
"""

from __future__ import annotations

import logging

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from roost.core.work.handover import Handover
from roost.core.work.leased_log import Leaves
from roost.core.work.nodes import NodeLease
from roost.core.work.runner import Runner, RunnerParts
from roost.domain.session import Lease
from roost.errors import LeaseLost, NotFound, RoostError
from roost.ports.capacity import Capacity
from roost.ports.nodes import HEAD_START
from roost.ports.notifier import WORK

_log = logging.getLogger(__name__)
_LOOK_AGAIN = 2.0  # seconds; work whose notification was lost is found this late
_BREATHE = 1.0  # seconds before a session whose runner failed may be claimed again


class Dispatcher:
    """The work of one node, as far as the machine has memory and time for it."""

    def __init__(
        self,
        member: NodeLease,
        parts: RunnerParts,
        *,
        max_runners: int,
        drain_seconds: float,
        machine: Capacity,
    ) -> None:
        self.node = member.node
        self.member = member
        self._log = parts.log
        self._notifier = parts.notifier
        self._parts = parts
        self._max_runners = max_runners
        self._machine = machine
        self._runners: dict[Runner, CancelScope] = {}
        self._stopping = False
        self._handover = Handover(
            member, parts.notifier, parts.idle, lambda: self.busy, self._cancel, drain_seconds
        )

    async def run(self, stop_seconds: float, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Work until `stop`, then let runners finish for `stop_seconds` and hand back the rest."""
        await self.member.join()
        async with anyio.create_task_group() as alive:
            alive.start_soon(self.member.run)
            alive.start_soon(self._handover.whenever_draining)
            async with anyio.create_task_group() as tasks:
                task_status.started()
                await self._claim_while_wanted(tasks)
                await self._handover.for_good(stop_seconds)
                tasks.cancel_scope.cancel()
            alive.cancel_scope.cancel()
        await self.member.leave()

    @property
    def running(self) -> int:
        """How many sessions it has the leases of."""
        return len(self._runners)

    @property
    def busy(self) -> int:
        """How many sessions are worked on now: not those whose agent is only kept warm, nor those that only
        wait, for a model that asked for a pause, or for a sandbox. Of the latter there may be as many
        again, and no more: each has a process.
        """
        waiting = sum(runner.log.waits for runner in self._runners)
        return self.running - len(self._parts.idle) - min(waiting, self._max_runners)

    @property
    def starting(self) -> int:
        """How many agents are being started now."""
        return len(self._parts.starter.limit)

    def stop(self) -> None:
        """Claim nothing more; `run` winds down."""
        self._stopping = True
        self._notifier.notify(WORK)

    async def _claim_while_wanted(self, tasks: TaskGroup) -> None:
        heard = False
        with self._notifier.subscribe(WORK) as subscription:
            while not self._stopping:
                for lease in await self._claim():
                    self._parts.starter.limit.expect(lease.session_id)
                    runner = Runner(self._parts, lease, lambda: self._handover.leaving)
                    self._runners[runner] = CancelScope()
                    tasks.start_soon(self._run, runner, lease)
                # What was just notified of may be left to another node, for a moment.
                heard = await subscription.until_notified(2 * HEAD_START if heard else _LOOK_AGAIN)

    @property
    def room(self) -> int:
        """How many more sessions this node would claim now. One is always tried: only what is at work
        already can have taken the room away.
        """
        if self.member.draining or self._stopping:
            return 0
        wanted = min(self._max_runners - self.busy, self._parts.starter.limit.free)
        return min(wanted, max(self._machine.room(), 1 - self.busy)) if wanted > 0 else 0

    async def _claim(self) -> list[Lease]:
        if self._machine.short():
            self._parts.idle.end_one()
        room = self.room
        if not room:
            return []
        try:
            return await self._log.claim(self.node, room)
        except LeaseLost:
            await self.member.renew()
        except RoostError as error:
            _log.error("cannot claim: %s", error.message, extra={"action": "claim"})
        return []

    async def _run(self, runner: Runner, lease: Lease) -> None:
        """Work until the session rests, ends, or is somebody else's."""
        about = {"session": lease.session_id, "generation": lease.generation}
        _log.info("runner starts", extra={"action": "claim", **about})
        try:
            with self._runners[runner]:
                await runner.until_left()
        except (LeaseLost, NotFound, Leaves) as reason:
            _log.info("runner leaves: %s", reason, extra={"action": "leave", **about})
        except Exception:  # noqa: BLE001 - one session's fault must not end the others
            _log.exception("runner failed", extra={"action": "fail", **about})
            await anyio.sleep(_BREATHE)
        finally:
            del self._runners[runner]
            self._parts.starter.limit.end(lease.session_id)
            with anyio.CancelScope(shield=True):
                await self._hand_back(lease)
            # Whoever follows it may show that its agent was ended.
            self._notifier.notify(lease.session_id)
            self._notifier.notify(WORK)

    async def _hand_back(self, lease: Lease) -> None:
        """No harm where the lease ended already; else the next claim goes on from the log."""
        try:
            await self._log.release(lease)
        except RoostError as error:
            about = {"action": "release", "session": lease.session_id}
            _log.warning("cannot hand back: %s", error.message, extra=about)

    def _cancel(self) -> None:
        for scope in list(self._runners.values()):
            scope.cancel()
