"""A session's place: its directory, its way out, and the sandbox around both.

The directory is the session's own, below the vault. What is in it outlives every sandbox: the
agent's transcript, and the files it made. Nothing of the server's is shown inside but the few sockets
of the way out, and behind those wait the secrets.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from roost.core.budgets import Budgets
from roost.core.skills import Skills
from roost.domain.budget import Spent, price_of
from roost.domain.session import Lease, Session
from roost.errors import NotFound
from roost.ports.catalog import Catalog
from roost.ports.egress import Account, Egress, Endpoints, Grant, Networking, Refused
from roost.ports.sandbox import Mount, Plan, Process, Sandbox, SandboxProvider, Stats

FORWARDER: Final = "/run/roost/forward.py"
"""Where a sandbox shows the program that gives its loopback ports a way out."""

_log = logging.getLogger(__name__)

OnRefusal = Callable[[Refused], Awaitable[None]]
OnSpending = Callable[[Spent], Awaitable[None]]
OnAccount = Callable[[Account], None]


class Places:
    """Opens places for sessions."""

    def __init__(
        self,
        sandboxes: SandboxProvider,
        egress: Egress,
        catalog: Catalog,
        *,
        vault: Path,
        forwarder: Path,
        skills: Skills | None = None,
        budgets: Budgets | None = None,
        on_account: OnAccount = lambda account: None,
    ) -> None:
        self._sandboxes = sandboxes
        self._egress = egress
        self._catalog = catalog
        self._vault = vault
        self._forwarder = forwarder
        self._skills = skills
        self._budgets = budgets or Budgets()
        self._on_account = on_account

    async def check(self) -> None:
        """:raises SandboxUnavailable: this machine cannot give a place now"""
        await self._sandboxes.check()

    async def skills_of(self, session: Session) -> tuple[list[Mount], list[str]]:
        """What has to be mounted of a session's skills, and what of them is gone, in words."""
        return await self._skills.mounts(session) if self._skills is not None else ([], [])

    @asynccontextmanager
    async def open(
        self,
        lease: Lease,
        session: Session,
        mounts: Sequence[Mount],
        on_refusal: OnRefusal,
        on_spending: OnSpending,
    ) -> AsyncGenerator[Sandbox, None]:
        """The session's place, for as long as the context lasts; all in it is dead afterwards.

        What it is refused and what it spends is told as it happens.

        :raises SandboxUnavailable: it cannot be made
        """
        home = self._vault / ".workspaces" / session.id
        home.mkdir(parents=True, exist_ok=True)
        grant = Grant(
            session_id=session.id,
            generation=lease.generation,
            account=partial(self._account, on_spending),
            refused=on_refusal,
            budget=self._budgets.of(session),
            spent=self._budgets.spent(session),
            prices=self._budgets.prices,
            networking=await self._networking(session),
        )
        async with self._egress.open(grant) as way:
            plan = Plan(
                session_id=session.id,
                generation=lease.generation,
                home=home,
                workspace=home,
                mounts=[*mounts, *way.mounts, Mount(self._forwarder, FORWARDER)],
                environ=way.environ,
            )
            async with self._sandboxes.open(plan) as sandbox:
                yield _Forwarded(sandbox, way) if way.forwards else sandbox

    async def _account(self, on_spending: OnSpending, account: Account) -> None:
        _note(account)
        self._on_account(account)
        price = price_of(self._budgets.prices, account.model)
        await on_spending(Spent.on(account.usage, price))

    async def _networking(self, session: Session) -> Networking:
        """As the environment says. An environment that is gone allows nothing."""
        try:
            found = await self._catalog.get(
                "environment", session.tenant, session.spec.environment_id
            )
        except NotFound:
            return Networking()
        servers = session.spec.agent.get("mcp_servers") or ()
        return networking_of(found.body.get("config") or {}, servers)


def networking_of(
    config: Mapping[str, Any], mcp_servers: Sequence[Mapping[str, Any]] = ()
) -> Networking:
    """What an environment's configuration allows to an agent with these MCP servers."""
    rules = config.get("networking") or {}
    if rules.get("type") == "unrestricted":
        return Networking(kind="unrestricted")
    if rules.get("type") != "limited":
        return Networking()
    servers = mcp_servers if rules.get("allow_mcp_servers") else ()
    hosts = [urlsplit(server["url"]).hostname for server in servers]
    return Networking(
        kind="limited",
        allowed_hosts=[*(rules.get("allowed_hosts") or ()), *filter(None, hosts)],
        package_managers=bool(rules.get("allow_package_managers")),
    )


def _note(account: Account) -> None:
    _log.info(
        "model request: %d in %.1f s",
        account.status,
        account.seconds,
        extra={"action": "model", "session": account.session_id, "model": account.model},
    )


class _Forwarded:
    """A sandbox whose commands find their way out on loopback ports of their own."""

    def __init__(self, inner: Sandbox, way: Endpoints) -> None:
        self._inner = inner
        ports = [f"{port}={path}" for port, path in way.forwards.items()]
        self._prefix = ["python3", "-I", "-S", FORWARDER, *ports, "--"]

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> Process:
        return await self._inner.spawn([*self._prefix, *argv], environ=environ, cwd=cwd)

    def handle(self) -> dict[str, Any]:
        return self._inner.handle()

    async def stats(self) -> Stats:
        return await self._inner.stats()

    async def stop(self) -> None:
        await self._inner.stop()
