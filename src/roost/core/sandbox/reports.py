"""What a sandbox reports while it is open, and how that gets into its session's log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from roost.core.sandbox.budgets import Budgets
from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft
from roost.domain.ledger import Batch
from roost.ports.drafts import new_draft, trouble
from roost.ports.egress import RefusalReport
from roost.ports.sessions import Sessions

OnLack = Callable[[Draft], Awaitable[None]]
Append = Callable[[Batch], Awaitable[None]]
OnSpending = Callable[[Spent], Awaitable[None]]

_NOT_ACCEPTED: Final = {
    "credential_rejected": "does not accept the credential it was sent, or wants one: the session's vaults "
    "need one for its address that it accepts",
    "credential_unavailable": "was not asked, because its credential cannot be opened or renewed",
}


class SandboxReports(Protocol):
    """Is told what happens in a session's sandbox, and says what it may spend."""

    async def refused(self, refused: RefusalReport) -> None:
        """It was refused something that it asked for."""
        ...

    async def spent(self, spent: Spent) -> None:
        """Something in it has asked the model."""
        ...

    async def lacks(self, lack: Draft) -> None:
        """It goes on without something that it should have."""
        ...

    async def allowed(self) -> Budget:
        """What may be spent in it by now."""
        ...


class LoggedReports:
    """Logs what a sandbox is refused, what it spends and what it lacks.

    `append` writes to the session's log, as the runner that has its lease.
    """

    def __init__(
        self, append: Append, session_id: str, sessions: Sessions, budgets: Budgets
    ) -> None:
        self._append = append
        self._session_id = session_id
        self._sessions = sessions
        self._budgets = budgets

    async def refused(self, refused: RefusalReport) -> None:
        """Log what the sandbox was not allowed to reach."""
        more = f" ({refused.unreported} more were refused)" if refused.unreported else ""
        error, text = "network_refused", f"the sandbox may not reach {refused.host}:{refused.port}"
        if refused.reason == "budget_reached":
            error, text = "billing_error", "a request to the model was refused"
        elif refused.reason == "placeholder_not_replaced":
            where = f"{refused.host}:{refused.port}"
            error, text = refused.reason, f"a secret cannot be put on requests to {where}"
        hint = f". {refused.hint}" if refused.hint else ""
        said = trouble(error, f"{text}: {refused.reason}{more}{hint}", "retrying")
        if refused.server and refused.reason in _NOT_ACCEPTED:
            said = _unauthenticated(refused)
        await self._append(Batch(drafts=[said]))

    async def spent(self, spent: Spent) -> None:
        """Count it in the session's state."""
        await self._append(Batch(counted=spent))

    async def lacks(self, lack: Draft) -> None:
        """Log it; the session goes on."""
        await self._append(Batch(drafts=[lack]))

    async def allowed(self) -> Budget:
        """Its budget, which may have been raised since the sandbox was opened."""
        return self._budgets.of(await self._sessions.find(self._session_id))


def _unauthenticated(refused: RefusalReport) -> Draft:
    why = f" ({refused.hint})" if refused.hint else ""
    error = {
        "type": "mcp_authentication_failed_error",
        "mcp_server_name": refused.server,
        "message": f"The MCP server {refused.server} {_NOT_ACCEPTED[refused.reason]}{why}.",
        "retry_status": {"type": "retrying"},
    }
    return new_draft("session.error", error=error)
