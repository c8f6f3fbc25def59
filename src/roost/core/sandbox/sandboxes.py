"""A session's place: its directory, its way out, and the sandbox around both.

The directory is the session's own, below the vault. What is in it outlives every sandbox: the
agent's transcript, and the files it made. Nothing of the server's is shown inside but the few sockets
of the way out, and behind those wait the secrets.

A session whose trust level is not `sandboxed` has no walls around it: it works in the vault itself.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from msgspec.structs import replace

from roost.core.files.resources import Resources
from roost.core.records.skills import Skills
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.clones import cloned
from roost.core.sandbox.loopback import FORWARDER, forwarded
from roost.core.sandbox.networking import networking_of
from roost.core.sandbox.reports import OnLack, OnSpending, SandboxReports
from roost.core.workspaces.copies import WorkspacePast
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.shared import SharedWorkspaces
from roost.disk import remove
from roost.domain.budget import Spent, price_of
from roost.domain.events import trouble
from roost.domain.session import SANDBOXED_ONLY, Lease, SandboxKind, Session, Spec, TrustLevel
from roost.errors import InvalidRequest, NotFound, RoostError, SandboxFailed, SandboxUnavailable
from roost.ports.catalog import Catalog
from roost.ports.egress import Account, Egress, Grant, Networking
from roost.ports.harness import Confinement, Harness
from roost.ports.sandbox import Limits, Mount, Plan, Sandbox, SandboxProvider, Stats

VAULT: Final = "/vault"
"""Where a sandbox shows the vault, read-only, to a session whose mount scope has it."""

_WORKSPACES: Final = ".workspaces"
_FOR_THE_HOME: Final = 256 * 1024**2  # bytes of disk
_log = logging.getLogger(__name__)

OnAccount = Callable[[Account], None]


class Sandboxes:
    """Opens places for sessions.

    `sandboxes` is what sessions get that are made now, `others` what they may fall back to, or had
    from the start. `models` are those that every session may use besides its agent's own; None: any. `levels` are the trust levels the operator offers. `data` is the server's own
    directory, and `person` the home of whoever runs it, which is where `full` trust is at home too.
    """

    def __init__(
        self,
        sandboxes: SandboxProvider,
        egress: Egress,
        catalog: Catalog,
        *,
        vault: Path,
        forwarder: Path,
        others: Sequence[SandboxProvider] = (),
        levels: Sequence[TrustLevel] = SANDBOXED_ONLY,
        data: Path | None = None,
        person: Path | None = None,
        files: LocalWorkspaces | None = None,
        commons: SharedWorkspaces | None = None,
        skills: Skills | None = None,
        budgets: Budgets | None = None,
        models: Sequence[str] | None = None,
        limits: Limits | None = None,
        resources: Resources | None = None,
        on_account: OnAccount = lambda account: None,
    ) -> None:
        self._default = sandboxes.name
        self._providers = {provider.name: provider for provider in (*others, sandboxes)}
        self._egress = egress
        self._catalog = catalog
        self._vault = vault
        self._forwarder = forwarder
        self._levels = levels
        self._data = data
        self._person = person
        self._skills = skills
        self._resources = resources
        self._budgets = budgets or Budgets()
        self._models = models
        self._usual = limits or Limits()
        self._on_account = on_account
        self._open: dict[str, Sandbox] = {}
        self._files = files
        self._commons = commons

    async def stats(self, session_id: str) -> Stats | None:
        """What a session's sandbox uses now; None if it has none open here."""
        sandbox = self._open.get(session_id)
        if sandbox is None:
            return None
        try:
            return await sandbox.stats()
        except SandboxFailed:
            return None  # it is going away just now

    def assigned(self, spec: Spec) -> Spec:
        """With the kind of place that such a session gets when it is made."""
        return replace(spec, sandbox=self._kind(spec))

    def check_kind(self, kind: SandboxKind) -> None:
        """:raises InvalidRequest: the operator does not let sessions fall back to that"""
        if kind not in self._providers:
            known = ", ".join(sorted(self._providers.keys() - {"host"}))
            raise InvalidRequest(
                f"sandbox_fallback: {kind!r} is not offered here",
                hint=f"There is: {known}. The operator sets ROOST_SANDBOX_FALLBACKS.",
            )

    async def check(self, spec: Spec) -> None:
        """:raises SandboxUnavailable: such a session cannot have its place now"""
        kind, level = self._kind(spec), spec.trust_level
        if level not in self._levels:
            raise SandboxUnavailable(
                f"this server does not offer the trust level {level!r}",
                hint="The session waits, and goes on once ROOST_TRUST_LEVELS has it again.",
            )
        if kind not in self._providers:
            raise SandboxUnavailable(
                f"the session has a {kind} sandbox, and this server gives none",
                hint="The session waits, and goes on once ROOST_SANDBOX_FALLBACKS has it again.",
            )
        if level == "vault" or spec.mount_scope == "workspace+vault":
            self._check_vault()
        await self._providers[kind].check()

    async def sweep(self) -> None:
        """End what servers that were killed have left on this machine. Called when a server starts.

        What cannot be ended now is in nobody's way: opening a place of the same session tries again.
        """
        for provider in self._providers.values():
            try:
                await provider.sweep()
            except SandboxFailed as error:
                # A kind that sessions only fall back to need not be on this machine.
                level = logging.WARNING if provider.name == self._default else logging.DEBUG
                _log.log(level, "cannot sweep: %s", error.message, extra={"action": "sweep"})

    async def gone_from(self, session: Session) -> list[str]:
        """Which of its skills and files are gone, in words."""
        _, gone = await self.skills_of(session)
        return [*gone, *(await self._resources.gone(session) if self._resources else ())]

    async def captured(self, session: Session) -> str | None:
        """Keep what its agent has put into its outputs; gives in words what was left out."""
        return await self._resources.outputs.capture(session) if self._resources else None

    async def _resources_of(self, session: Session, notes: SandboxReports) -> list[Mount]:
        if self._resources is None:
            return []
        if left := await self.captured(session):  # first, what a crash kept from being taken
            await notes.lacks(trouble("outputs_left_out", left, "retrying"))
        return await self._resources.mounts(session)

    async def skills_of(self, session: Session) -> tuple[list[Mount], list[str]]:
        """What has to be mounted of a session's skills, and what of them is gone, in words."""
        return await self._skills.mounts(session) if self._skills is not None else ([], [])

    @asynccontextmanager
    async def open(
        self,
        lease: Lease,
        session: Session,
        harness: Harness,
        notes: SandboxReports,
    ) -> AsyncGenerator[Sandbox, None]:
        """The session's place, for as long as the context lasts; all in it is dead afterwards.

        What it is refused and what it spends is told as it happens. Its files are the newest,
        restored first if they are not here, and stored when it ends.

        :raises SandboxUnavailable: it cannot be made
        :raises BlobsFailed: its files cannot be restored
        :raises FilesElsewhere: it shares a workspace that is on another node
        :raises WorkspaceDeleted: the workspace it shares is gone
        """
        home = self._home(session)
        home.mkdir(parents=True, exist_ok=True)
        async with (
            self._joined(session, notes.lacks),
            self._kept(session, lease.generation, notes.lacks),
            self._opened(lease, session, home, harness, notes) as sandbox,
        ):
            yield sandbox

    async def begun(self, session: Session) -> None:
        """A turn begins: returns when the files are stored as the one before has left them."""
        if self._files is not None:
            await self._files.begun(session.id)
        if self._commons is not None and session.spec.workspace is not None:
            await self._commons.begun(session.spec.workspace)

    def rested(self, session_id: str, seq: int) -> None:
        """A turn is over, with this entry of the log: its files are stored now; 0: it only waits."""
        if self._files is not None:
            self._files.rested(session_id, seq)

    def may_be_behind(self, session_id: str) -> bool:
        """Whether the files of an open place may be older than the session's log."""
        return self._files is not None and self._files.may_be_behind(session_id)

    def _kept(
        self, session: Session, generation: int, say: OnLack
    ) -> AbstractAsyncContextManager[None]:
        if self._files is None:
            return nullcontext()
        return self._files.open(session.id, generation, WorkspacePast.of(session.state), say=say)

    @asynccontextmanager
    async def _joined(self, session: Session, say: OnLack) -> AsyncGenerator[None, None]:
        """The files of the workspace it shares with others, if it does."""
        workspace = session.spec.workspace
        if workspace is None:
            yield
            return
        if self._commons is None:
            raise RoostError("this server keeps no shared workspaces")
        await self._commons.settings(session.tenant, workspace)  # if deleted, it gets no folder
        self._workspace(session).mkdir(parents=True, exist_ok=True)
        async with self._commons.join(session.tenant, workspace, say):
            yield

    @asynccontextmanager
    async def _opened(
        self,
        lease: Lease,
        session: Session,
        home: Path,
        harness: Harness,
        notes: SandboxReports,
    ) -> AsyncGenerator[Sandbox, None]:
        grant = Grant(
            session_id=session.id,
            generation=lease.generation,
            account=partial(self._account, notes.spent),
            refused=notes.refused,
            api=harness.profile.upstream,
            models=self._models_of(session, harness),
            budget=self._budgets.of(session),
            raised=notes.allowed,
            spent=self._budgets.spent(session),
            prices=self._budgets.prices,
            networking=await self.networking(session),
            repositories=await self._resources.repositories(session) if self._resources else (),
        )
        skills, _ = await self.skills_of(session)
        own = harness.profile.own_directories
        resources = await self._resources_of(session, notes)
        async with self._egress.open(grant) as way:
            plan = Plan(
                session_id=session.id,
                generation=lease.generation,
                home=home,
                workspace=self._workspace(session),
                hidden=sorted(own) if self._workspace(session) == home else (),
                mounts=[
                    *harness.mounts,
                    *skills,
                    *resources,
                    *way.mounts,
                    *self._shown(session.spec),
                ],
                environ={**way.environ, **self._environ(session.spec)},
                ports=way.ports,
                limits=await self._limits(session),
            )
            async with self._providers[self._kind(session.spec)].open(plan) as sandbox:
                self._open[session.id] = sandbox
                place = sandbox if sandbox.has_ports else forwarded(sandbox, way)
                try:
                    for lack in await cloned(place, session.spec.resources):
                        await notes.lacks(lack)
                    yield place
                finally:
                    del self._open[session.id]

    def _models_of(self, session: Session, harness: Harness) -> list[str] | None:
        """What it may ask its model's server for: the operator's models, and those its agent needs."""
        if self._models is None:
            return None
        return [*self._models, *harness.models(session.spec.agent)]

    async def _account(self, on_spending: OnSpending, account: Account) -> None:
        _note(account)
        self._on_account(account)
        price = price_of(self._budgets.prices, account.model)
        await on_spending(Spent.on(account.usage, price))

    def bounds(self, session: Session) -> Confinement | None:
        """What its harness has to keep the agent's tools in; None where walls do, or nothing does."""
        if session.spec.trust_level != "vault":
            return None
        hidden = [] if session.spec.workspace else [self._vault / _WORKSPACES]
        return Confinement(self._workspace(session), self._home(session), hidden)

    def _kind(self, spec: Spec) -> str:
        if spec.trust_level != "sandboxed":
            return "host"
        return spec.sandbox or self._default

    def _home(self, session: Session) -> Path:
        return self._vault / _WORKSPACES / session.id

    def _workspace(self, session: Session) -> Path:
        if session.spec.workspace is not None:
            return self._vault / _WORKSPACES / session.spec.workspace
        return self._home(session) if session.spec.trust_level == "sandboxed" else self._vault

    async def _limits(self, session: Session) -> Limits:
        """What the sandbox may use. A workspace's quota is a limit on disk as well, with some room for
        the session's home beside it.
        """
        usual, workspace = self._usual, session.spec.workspace
        if workspace is None or self._commons is None:
            return usual
        quota = (await self._commons.settings(session.tenant, workspace)).quota_bytes
        if quota is None:
            return usual
        most = quota + _FOR_THE_HOME
        return replace(usual, disk_bytes=min(usual.disk_bytes or most, most))

    def _shown(self, spec: Spec) -> list[Mount]:
        mounts = [Mount(self._forwarder, FORWARDER)]
        if spec.mount_scope == "workspace+vault" and spec.trust_level == "sandboxed":
            is_link = (self._vault / _WORKSPACES).is_symlink()  # then it leads nowhere, inside
            mounts.append(Mount(self._vault, VAULT, hidden=[] if is_link else [_WORKSPACES]))
        return mounts

    def _environ(self, spec: Spec) -> dict[str, str]:
        person = self._person if spec.trust_level == "full" else None
        return {"HOME": str(person)} if person else {}

    def _check_vault(self) -> None:
        """Whoever sees the vault sees all that lies in it, but for `.workspaces`."""
        vault = self._vault.resolve()
        secret = [(vault / _WORKSPACES).resolve(), *([self._data.resolve()] if self._data else [])]
        for path in secret:
            if path.is_relative_to(vault) and path != vault / _WORKSPACES:
                raise SandboxUnavailable(
                    f"the server's own {path.name} lies in the vault, where sessions would see it",
                    hint="Move it elsewhere with ROOST_DATA, or give another vault with ROOST_VAULT.",
                )

    async def remove(self, session_id: str) -> None:
        """Remove the directory of a session that never was."""
        if self._files is not None:
            await self._files.forget(session_id)
        if self._resources is not None:
            await self._resources.forget("", session_id)
        await anyio.to_thread.run_sync(remove, self._vault / _WORKSPACES / session_id)

    async def networking(self, session: Session) -> Networking:
        """As the environment says. An environment that is gone allows nothing."""
        try:
            found = await self._catalog.get(
                "environment", session.tenant, session.spec.environment_id
            )
        except NotFound:
            return Networking()
        servers = session.spec.agent.get("mcp_servers") or ()
        allowed = networking_of(found.body.get("config") or {}, servers)
        if session.spec.trust_level == "sandboxed":
            return allowed
        if allowed.kind == "limited":
            raise RoostError(  # no sandbox is missing: there is nothing to wait for
                "the environment's networking is limited by now, which cannot be enforced on the host",
                hint="Make it unrestricted again; this session cannot become sandboxed.",
            )
        return Networking()  # the host's own network needs no way out of a sandbox


def _note(account: Account) -> None:
    _log.info(
        "model request: %d in %.1f s",
        account.status,
        account.seconds,
        extra={"action": "model", "session": account.session_id, "model": account.model},
    )
