"""Opens a session's sandbox: its files are brought here, its grant is served, and both are put together.

What is in the session's directory outlives every sandbox: the agent's transcript, and the files it made.
Nothing of the server's is shown inside but the few sockets of its egress, and behind those wait the secrets.

A session whose trust level is not `sandboxed` is not isolated: it works in the vault itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import anyio
from msgspec.structs import replace

from roost.core.sandbox.available import once_available
from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.clones import cloned
from roost.core.sandbox.loopback import with_ports
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.on_demand import Open, on_demand
from roost.core.sandbox.packages import PackageLayers
from roost.core.sandbox.planner import SandboxInputs, SandboxPlanner, SandboxSystem
from roost.core.sandbox.reports import OnLack, SandboxReports
from roost.core.sandbox.running import RunningSandboxes
from roost.core.sandbox.session_files import SessionFiles
from roost.core.sandbox.variables import lacks_of
from roost.domain.session import Lease, Session
from roost.ports.drafts import trouble
from roost.ports.egress import Egress, OpenGrant
from roost.ports.harness import Brief, Harness, Trouble
from roost.ports.sandbox import Sandbox
from roost.ports.volumes import SessionVolumes

_OPENED_AT_ONCE: Final = 8  # of those that are opened when they are needed
_Placed = Callable[[SandboxSystem], AbstractAsyncContextManager[Sandbox]]


class Sandboxes:
    """Opens sandboxes for sessions."""

    def __init__(
        self,
        offered: OfferedSandboxes,
        planner: SandboxPlanner,
        egress: Egress,
        *,
        volumes: SessionVolumes,
        files: SessionFiles,
        belongings: SessionBelongings,
        packages: PackageLayers,
    ) -> None:
        self.offered = offered
        self._planner = planner
        self._egress = egress
        self._volumes = volumes
        self.files = files
        self.belongings = belongings
        self.packages = packages
        self.running = RunningSandboxes()
        self._opening = anyio.Semaphore(_OPENED_AT_ONCE)

    def is_lazy(self, session: Session, harness: Harness) -> bool:
        """Whether its sandbox is opened when it is needed, and not before. In a workspace that others share it has
        to be known at once whether the files are on this node.
        """
        return harness.profile.on_demand and session.spec.workspace is None

    async def system(
        self, session: Session, say: OnLack, waits: Callable[[], None] = lambda: None
    ) -> SandboxSystem:
        """The system of its environment, once it is there: see `PackageLayers.of`.

        :raises SandboxUnavailable: its sandbox cannot be had now
        """
        # Nothing else will do: a session keeps the trust level and the kind of sandbox it was given, and works
        # in no other system than its environment's.
        await self.offered.check(session.spec)
        return await self.packages.of(session, self.offered.provider_for(session.spec), say, waits)

    @asynccontextmanager
    async def open(
        self,
        lease: Lease,
        brief: Brief,
        harness: Harness,
        reports: SandboxReports,
        system: SandboxSystem | None,
    ) -> AsyncGenerator[Brief, None]:
        """The brief with its session's sandbox, for as long as the context lasts; all in it is dead afterwards.

        What it is refused and what it spends is told as it happens. Its files are the newest,
        restored first if they are not here, and stored when it ends. Without a `system` it asks for that, does
        all this, and raises the following, when its first command is spawned.

        :raises SandboxUnavailable: it cannot be made
        :raises PackagesFailed: its environment's packages cannot be installed
        :raises BlobsFailed: its files cannot be restored
        :raises FilesElsewhere: it shares a workspace that is on another node
        :raises WorkspaceDeleted: the workspace it shares is gone
        """
        session = brief.session
        async with AsyncExitStack() as stack:  # opened in this order, and closed in the reverse one
            inputs = await self.belongings.inputs(session, harness.profile.upstream, reports.lacks)
            grant = self._planner.grant(lease, session, harness, inputs, reports)
            granted = await stack.enter_async_context(self._egress.open(grant))
            for lack in lacks_of(inputs.variables, granted):
                await reports.lacks(lack)
            placed = partial(self._placed, lease, session, harness, reports, inputs, granted)
            ready = partial(self._ready, session, reports, placed)
            context = on_demand(ready, self._opening) if system is None else placed(system)
            sandbox = await stack.enter_async_context(context)
            has_lost = self.running.has_lost_files(session.id)
            is_behind = has_lost or self.files.may_be_behind(session.id)
            yield replace(
                brief,
                start=brief.start.behind() if is_behind else brief.start,
                sandbox=sandbox,
                confinement=self._planner.confinement(session),
                addresses=granted.addresses,
                grant=granted,
                skills=await self.belongings.skills(session),
            )

    async def _ready(self, session: Session, reports: SandboxReports, placed: _Placed) -> Open:
        """How to open it, once it can be had and its packages are there."""

        async def tell(lack: Trouble) -> None:
            await reports.lacks(trouble(lack.error, lack.message, lack.retry))

        look = partial(self.system, session, reports.lacks)
        return partial(placed, await once_available(look, tell, anyio.sleep))

    @asynccontextmanager
    async def _placed(
        self,
        lease: Lease,
        session: Session,
        harness: Harness,
        reports: SandboxReports,
        inputs: SandboxInputs,
        granted: OpenGrant,
        system: SandboxSystem,
    ) -> AsyncGenerator[Sandbox, None]:
        """The sandbox itself, with the session's files in it."""
        self._volumes.make(session.id)
        keeps_turns = harness.profile.goes_back
        async with self.files.open(session, lease.generation, reports.lacks, keeps_turns):
            brought = await self.belongings.mounts(session, reports.lacks)
            quota, mounts = await self.files.quota(session), [*harness.mounts, *brought]
            inputs = replace(inputs, mounts=mounts, quota_bytes=quota, system=system)
            plan = self._planner.plan(lease, session, harness, inputs, granted)
            async with self.offered.provider_for(session.spec).open(plan) as bare:
                sandbox = with_ports(bare, plan.endpoints)
                with self.running.having(session.id, bare):
                    for lack in await cloned(sandbox, session.spec.resources):
                        await reports.lacks(lack)
                    yield sandbox

    async def remove(self, session_id: str) -> None:
        """Remove the directory of a session that never was. :raises OSError: it stays"""
        await self.files.forget(session_id)
        await self.belongings.forget(session_id)
        await self._volumes.remove(session_id)
