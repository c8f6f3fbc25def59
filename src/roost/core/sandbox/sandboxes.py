"""Opens a session's sandbox: its files are brought here, its grant is served, and both are put together.

What is in the session's directory outlives every sandbox: the agent's transcript, and the files it made.
Nothing of the server's is shown inside but the few sockets of its egress, and behind those wait the secrets.

A session whose trust level is not `sandboxed` is not isolated: it works in the vault itself.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.clones import cloned
from roost.core.sandbox.loopback import with_ports
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.planner import SandboxInputs, SandboxPlanner
from roost.core.sandbox.reports import OnSpending, SandboxReports
from roost.core.sandbox.session_files import SessionFiles
from roost.core.sandbox.variables import lacks_of
from roost.domain.session import Lease, Session, Spec
from roost.errors import SandboxFailed
from roost.ports.egress import Account, Egress
from roost.ports.harness import Harness
from roost.ports.sandbox import Sandbox, Stats
from roost.ports.sandbox_provider import Mount
from roost.ports.volumes import SessionVolumes

VAULT: Final = "/vault"
"""Where a sandbox shows the vault, read-only, to a session whose mount scope has it."""

_log = logging.getLogger(__name__)

OnAccount = Callable[[Account], None]


class _OpenSandbox(NamedTuple):
    sandbox: Sandbox
    addresses: Mapping[str, str]


class Sandboxes:
    """Opens sandboxes for sessions. `on_account` is told of each request that went to a model."""

    def __init__(
        self,
        offered: OfferedSandboxes,
        planner: SandboxPlanner,
        egress: Egress,
        *,
        volumes: SessionVolumes,
        files: SessionFiles,
        belongings: SessionBelongings,
        on_account: OnAccount,
    ) -> None:
        self._offered = offered
        self.planner = planner
        self._egress = egress
        self._volumes = volumes
        self.files = files
        self.belongings = belongings
        self._on_account = on_account
        self._open: dict[str, _OpenSandbox] = {}

    async def check(self, spec: Spec) -> None:
        """See whether such a session can have its sandbox now.

        :raises SandboxUnavailable: such a session cannot have its sandbox now
        """
        await self._offered.check(spec)

    @asynccontextmanager
    async def open(
        self, lease: Lease, session: Session, harness: Harness, reports: SandboxReports
    ) -> AsyncGenerator[Sandbox, None]:
        """The session's sandbox, for as long as the context lasts; all in it is dead afterwards.

        What it is refused and what it spends is told as it happens. Its files are the newest,
        restored first if they are not here, and stored when it ends.

        :raises SandboxUnavailable: it cannot be made
        :raises BlobsFailed: its files cannot be restored
        :raises FilesElsewhere: it shares a workspace that is on another node
        :raises WorkspaceDeleted: the workspace it shares is gone
        """
        self._volumes.make(session.id)
        async with (
            self.files.open(session, lease.generation, reports.lacks),
            self._opened(lease, session, harness, reports) as sandbox,
        ):
            yield sandbox

    @asynccontextmanager
    async def _opened(
        self, lease: Lease, session: Session, harness: Harness, reports: SandboxReports
    ) -> AsyncGenerator[Sandbox, None]:
        inputs = await self._inputs(session, harness, reports)
        account = partial(self._account, session, reports.spent)
        grant = self.planner.grant(lease, session, harness, inputs, account, reports)
        async with self._egress.open(grant) as opened:
            for lack in lacks_of(inputs.variables, opened):
                await reports.lacks(lack)
            plan = self.planner.plan(lease, session, harness, inputs, opened)
            async with self._offered.provider_for(session.spec).open(plan) as bare:
                self._open[session.id] = _OpenSandbox(bare, opened.addresses)
                sandbox = with_ports(bare, plan.endpoints)
                try:
                    for lack in await cloned(sandbox, session.spec.resources):
                        await reports.lacks(lack)
                    yield sandbox
                finally:
                    del self._open[session.id]

    async def _inputs(
        self, session: Session, harness: Harness, reports: SandboxReports
    ) -> SandboxInputs:
        """What has to be known of a session before its sandbox can be planned."""
        return SandboxInputs(
            networking=await self.belongings.networking(session),
            origins=await self.belongings.origins(session, harness.profile.upstream),
            variables=await self.belongings.variables(session, reports.lacks),
            mounts=[
                *harness.mounts,
                *await self.belongings.mounts(session, reports.lacks),
                *self._vault_of(session.spec),
            ],
            quota_bytes=await self.files.quota(session),
        )

    def _vault_of(self, spec: Spec) -> list[Mount]:
        is_shown = spec.mount_scope == "workspace+vault" and spec.trust_level == "sandboxed"
        return [self._volumes.vault_mount(VAULT)] if is_shown else []

    async def _account(self, session: Session, on_spending: OnSpending, account: Account) -> None:
        _log.info(
            "model request: %d in %.1f s",
            account.status,
            account.seconds,
            extra={"action": "model", "session": account.session_id, "model": account.model},
        )
        self._on_account(account)
        await on_spending(self.planner.cost(session, account))

    def addresses(self, session_id: str) -> Mapping[str, str]:
        """Where the servers of its agent are found in a session's open sandbox, by their own URLs."""
        return self._open[session_id].addresses

    async def stats(self, session_id: str) -> Stats | None:
        """What a session's sandbox uses now; None if it has none open here."""
        found = self._open.get(session_id)
        if found is None:
            return None
        try:
            return await found.sandbox.stats()
        except SandboxFailed:
            return None  # it is going away just now

    async def remove(self, session_id: str) -> None:
        """Remove the directory of a session that never was. :raises OSError: it stays"""
        await self.files.forget(session_id)
        await self.belongings.forget(session_id)
        await self._volumes.remove(session_id)
