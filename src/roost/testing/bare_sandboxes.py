"""Sandboxes of sessions that bring nothing along: no files to restore, no skills, no repositories."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.packages import PackageLayers
from roost.core.sandbox.planner import SandboxPlanner, SandboxPolicy, SandboxSystem
from roost.core.sandbox.reports import OnLack
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.sandbox.session_files import SessionFiles
from roost.core.sandbox.variables import SessionVariable
from roost.domain.packages import installations
from roost.domain.session import Session
from roost.errors import FieldNotServed
from roost.ports.catalog import Catalog
from roost.ports.egress import Egress, Origin
from roost.ports.harness import SkillNote
from roost.ports.sandbox_provider import Mount, SandboxProvider
from roost.ports.volumes import SessionVolumes


class NoFiles(SessionFiles):
    """Stores and restores nothing: the sessions' directories stay as they are."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    @asynccontextmanager
    async def open(
        self, session: Session, generation: int, say: OnLack, keeps_turns: bool
    ) -> AsyncGenerator[None, None]:
        """There is nothing to bring here."""
        yield

    async def begun(self, session: Session) -> None:
        """There is nothing to wait for."""

    def rested(self, session_id: str, seq: int) -> None:
        """There is nothing to store."""

    def may_be_behind(self, session_id: str) -> bool:
        """Files that are never restored are never older than the log."""
        return False

    async def quota(self, session: Session) -> int | None:
        """There are no shared workspaces."""
        return None

    async def forget(self, session_id: str) -> None:
        """Nothing is known of it."""


class NoBelongings(SessionBelongings):
    """Only the networking of environments, from the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def origins(self, session: Session, api: str) -> list[Origin]:
        """There are no repositories to reach."""
        return []

    async def skills(self, session: Session) -> list[SkillNote]:
        """There are no skills."""
        return []

    async def variables(self, session: Session, say: OnLack) -> list[SessionVariable]:
        """There are no vaults."""
        return []

    async def mounts(self, session: Session, say: OnLack) -> list[Mount]:
        """There is nothing to show inside."""
        return []

    async def check(self, session: Session, say: OnLack) -> None:
        """What never was is not gone."""

    async def keep_outputs(self, session: Session, say: OnLack) -> None:
        """There are no outputs."""

    async def forget(self, session_id: str) -> None:
        """Nothing is known of it."""


class NoPackages(PackageLayers):
    """Installs none: environments that name one are refused."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    async def check(self, environment: Mapping[str, Any]) -> None:
        """Refuse whoever names one. :raises FieldNotServed:"""
        for manager, _ in installations(environment["config"].get("packages") or {}):
            raise FieldNotServed(f"config.packages.{manager}: packages are not installed here")

    async def build_ahead(self, tenant: str, environment: Mapping[str, Any]) -> None:
        """There is nothing to build."""

    async def of(
        self,
        session: Session,
        provider: SandboxProvider,
        say: OnLack,
        waits: Callable[[], None] = lambda: None,
    ) -> SandboxSystem:
        """The usual one."""
        return SandboxSystem()

    async def named(self, session: Session, provider: SandboxProvider) -> SandboxSystem:
        """The usual one."""
        return SandboxSystem()


def bare_sandboxes(
    offered: OfferedSandboxes,
    egress: Egress,
    catalog: Catalog,
    volumes: SessionVolumes,
    *,
    files: SessionFiles | None = None,
    belongings: SessionBelongings | None = None,
) -> Sandboxes:
    """Sandboxes with the usual limits and no budget."""
    policy = SandboxPolicy(forwarder=Path("/forward"), person=Path("/home/me"))
    return Sandboxes(
        offered,
        SandboxPlanner(volumes, policy, Budgets(), lambda account: None),
        egress,
        volumes=volumes,
        files=files or NoFiles(),
        belongings=belongings or NoBelongings(catalog),
        packages=NoPackages(),
    )
