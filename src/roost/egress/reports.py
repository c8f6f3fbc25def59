"""What is not carried, and how the session's runner is told of it and of what was spent."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from roost.domain.budget import Budget
from roost.ports.egress import Account, Grant, Reason, RefusalReport


class Refusal(Exception):
    """The answer to a request that is not carried: a status, and a sentence for whoever asked.

    With a `reason` it is a rule that said no, and the session's log hears of it; without one, the
    request was malformed or the far side did not answer. A `hint` goes into the log beside a reason
    that does not speak for itself; `server` is the MCP server that it is about.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: Reason | None = None,
        host: str = "",
        port: int = 0,
        hint: str = "",
        server: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.host = host
        self.port = port
        self.hint = hint
        self.server = server
        self.retry_after = retry_after


_log = logging.getLogger(__name__)

_BURST = 60
_PER_SECOND = 1.0
_PATIENCE = 1.0  # seconds between two questions about the budget

Report = TypeVar("Report", Account, RefusalReport)


class Reports:
    """Calls the callbacks of one grant, with a bound on how long each may take."""

    def __init__(self, grant: Grant, seconds: float) -> None:
        self._grant = grant
        self._seconds = seconds
        self._tokens = float(_BURST)
        self._filled = anyio.current_time()
        self._unreported = 0
        self._asked = -math.inf

    async def account(self, account: Account) -> None:
        """A request to the model is over. Reported even while everything is being cut off."""
        with anyio.CancelScope(shield=True):
            await self._deliver(self._grant.account, account)

    async def refused(self, refusal: Refusal) -> None:
        """A rule said no; most of those that come in a flood are only counted."""
        if refusal.reason is None:
            return
        if not self._may_report():
            self._unreported += 1
            return
        unreported, self._unreported = self._unreported, 0
        report = RefusalReport(
            session_id=self._grant.session_id,
            host=refusal.host,
            port=refusal.port,
            reason=refusal.reason,
            hint=refusal.hint,
            server=refusal.server,
            unreported=unreported,
        )
        await self._deliver(self._grant.refused, report)

    async def budget(self, before: Budget) -> Budget:
        """What the budget is by now. Nobody is asked more than once in a second."""
        now = anyio.current_time()
        if self._grant.raised is None or now < self._asked + _PATIENCE:
            return before
        self._asked = now
        try:
            with anyio.fail_after(self._seconds):
                return await self._grant.raised()
        except Exception:  # noqa: BLE001 - whatever it does, the request is to be answered
            _log.exception("a budget was not told", extra={"session_id": self._grant.session_id})
            return before

    def _may_report(self) -> bool:
        now = anyio.current_time()
        self._tokens = min(_BURST, self._tokens + (now - self._filled) * _PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _deliver(self, callback: Callable[[Report], Awaitable[None]], report: Report) -> None:
        try:
            with anyio.fail_after(self._seconds):
                await callback(report)
        except Exception:  # noqa: BLE001 - whatever it does, other requests must be served
            _log.exception("a report was not taken", extra={"session_id": self._grant.session_id})
