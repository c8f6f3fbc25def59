"""Leg 2a: claim sessions that have work, and run as many at once as this node may.

Recovery is this and nothing else: a session whose runner died is claimed like any other.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskGroup

from roost.core.runner import Runner
from roost.domain.session import Lease
from roost.errors import LeaseLost, RoostError
from roost.ports.bell import WORK, Bell
from roost.ports.log import Log

_log = logging.getLogger(__name__)
_LOOK_AGAIN = 2.0  # seconds; work whose ring was lost is found this late
_BREATHE = 1.0  # seconds before a session whose runner failed may be claimed again


class Dispatcher:
    """The work of one node."""

    def __init__(
        self,
        node: str,
        log: Log,
        bell: Bell,
        runner: Runner,
        *,
        lease_seconds: float,
        max_runners: int,
    ) -> None:
        self.node = node
        self.running = 0
        self._log = log
        self._bell = bell
        self._runner = runner
        self._lease_seconds = lease_seconds
        self._max_runners = max_runners
        self._stopping = False

    async def run(self, stop_seconds: float, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Work until `stop`, then let runners finish for `stop_seconds` and hand back the rest."""
        await self._log.renew(self.node, self._lease_seconds)
        async with anyio.create_task_group() as alive:
            alive.start_soon(self._keep_alive)
            async with anyio.create_task_group() as runners:
                task_status.started()
                await self._claim_while_wanted(runners)
                await self._let_finish(stop_seconds)
                runners.cancel_scope.cancel()
            alive.cancel_scope.cancel()
        await self._log.renew(self.node, 0)

    @property
    def busy(self) -> int:
        """How many sessions are worked on now: not those whose agent is only kept warm, nor those that
        only wait. Of the latter there may be as many again, and no more: each has a process.
        """
        waiting = min(self._runner.waiting, self._max_runners)
        return self.running - self._runner.resting - waiting

    @property
    def waking(self) -> int:
        """How many agents are being started now."""
        return len(self._runner.wakes)

    def stop(self) -> None:
        """Claim nothing more; `run` winds down."""
        self._stopping = True
        self._bell.ring(WORK)

    async def _claim_while_wanted(self, runners: TaskGroup) -> None:
        with self._bell.listen(WORK) as ear:
            while not self._stopping:
                for lease in await self._claim():
                    self.running += 1
                    self._runner.wakes.expect(lease.session_id)
                    runners.start_soon(self._run, lease)
                await ear.wait(_LOOK_AGAIN)
                ear.rung()

    async def _claim(self) -> list[Lease]:
        room = min(self._max_runners - self.busy, self._runner.wakes.free)
        try:
            return await self._log.claim(self.node, room) if room > 0 else []
        except LeaseLost:
            await self._renew()
        except RoostError as error:
            _log.error("cannot claim: %s", error.message, extra={"action": "claim"})
        return []

    async def _renew(self) -> None:
        try:
            await self._log.renew(self.node, self._lease_seconds)
        except RoostError as error:
            _log.error("cannot renew: %s", error.message, extra={"action": "renew"})

    async def _run(self, lease: Lease) -> None:
        about = {"session": lease.session_id, "generation": lease.generation}
        _log.info("runner starts", extra={"action": "claim", **about})
        try:
            await self._runner.run(lease)
        except Exception:  # noqa: BLE001 - one session's fault must not end the others
            _log.exception("runner failed", extra={"action": "fail", **about})
            await anyio.sleep(_BREATHE)
        finally:
            self.running -= 1
            self._runner.wakes.end(lease.session_id)
            with anyio.CancelScope(shield=True):
                await self._hand_back(lease)
            self._bell.ring(lease.session_id)  # whoever follows it may show that its agent sleeps
            self._bell.ring(WORK)

    async def _hand_back(self, lease: Lease) -> None:
        """No harm where the lease ended already; else the next claim goes on from the log."""
        try:
            await self._log.release(lease)
        except RoostError as error:
            _log.warning(
                "cannot hand back: %s",
                error.message,
                extra={"action": "release", "session": lease.session_id},
            )

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(self._lease_seconds / 3)
            await self._renew()

    async def _let_finish(self, seconds: float) -> None:
        with anyio.move_on_after(seconds), self._bell.listen(WORK) as ear:
            while self.busy:
                await ear.wait(_LOOK_AGAIN)
                ear.rung()
