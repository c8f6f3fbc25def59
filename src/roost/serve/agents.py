"""The agents this server can run, and what they need: a model, egress, sandboxes and files."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import anyio
from msgspec.structs import replace

from roost.config import Settings, words
from roost.core.files.resources import Resources
from roost.core.records.skills import Skills
from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.packages import PackageLayers, PackagePolicy
from roost.core.sandbox.planner import OnAccount, SandboxPlanner, SandboxPolicy
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.sandbox.session_files import SessionFiles
from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness
from roost.core.sessions.trust import Trust
from roost.core.snapshots.snapshots import Snapshots
from roost.core.vaults.mcp import McpCredentials, McpValidation
from roost.core.vaults.refresh import OAuthRefresh
from roost.core.vaults.secrets import VaultSecrets
from roost.core.workspaces.browse import Browse
from roost.core.workspaces.copies import WorkspacePast, copies_in
from roost.core.workspaces.local import LocalWorkspaces, WorkspaceFacts
from roost.core.workspaces.quota import SnapshotQuota
from roost.core.workspaces.shared import SharedWorkspaces, shared_past
from roost.core.workspaces.sync import SyncPace
from roost.domain.session import Session, TrustLevel
from roost.egress import host as egress
from roost.egress.options import USUAL_PORTS, EgressOptions
from roost.errors import NotFound, StartupError
from roost.guest import forward
from roost.harnesses import (
    HARNESSES,
    WITH_A_KEY,
    WITHOUT_A_KEY,
    HarnessContext,
)
from roost.ports.archives import Archives
from roost.ports.blobs import Blobs
from roost.ports.harness import Harness
from roost.ports.notifier import Notifier
from roost.ports.packages import LayersKept
from roost.ports.sandbox_provider import SandboxLimits
from roost.ports.seal import Seal
from roost.ports.store import Store
from roost.sandboxes.bubblewrap.provider import DEFAULT_UIDS
from roost.sandboxes.choice import chosen, others
from roost.sandboxes.tree import LocalFolder, LocalTree
from roost.sandboxes.volumes import VaultVolumes
from roost.serve.prices import priced
from roost.serve.upstreams import ModelServers, serving_models
from roost.stores.archives import FolderArchives

_UNPACKED = 16  # times the size of an archive that what is in it may have
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workforce:
    """The harnesses that can be used here, which of all known ones a session gets, and the sandboxes of those
    that need one.
    """

    harnesses: Mapping[str, Harness]
    choice: HarnessChoice
    sandboxes: Sandboxes
    trust: Trust
    files: LocalWorkspaces
    shared_workspaces: SharedWorkspaces
    browse: Browse
    archives: Archives
    budgets: Budgets
    models: ModelServers
    validation: McpValidation
    packages: PackageLayers


@asynccontextmanager
async def open_workforce(
    settings: Settings,
    store: Store,
    blobs: Blobs,
    notifier: Notifier,
    skills: Skills,
    resources: Resources,
    secrets: VaultSecrets,
    seal: Seal,
    on_account: OnAccount,
    node: str,
) -> AsyncGenerator[Workforce, None]:
    """Everything that works on sessions, until the context ends. :raises StartupError:"""
    async with (
        serving_models(settings) as models,
        egress.serving(_egress(settings, models)) as way_out,
    ):
        budgets = priced(settings, models.known)
        levels = cast(list[TrustLevel], words(settings.trust_levels))
        vault = (settings.vault or settings.data / "vault").absolute()
        volumes = VaultVolumes(vault, settings.data.absolute())
        files, shared_workspaces = _files(settings, volumes, store, blobs, notifier, node)
        provider = chosen(settings)
        offered = OfferedSandboxes(provider, others(settings), levels, volumes)
        refresh = OAuthRefresh(store.credentials, seal, way_out.outbound)
        planner = SandboxPlanner(volumes, _policy(settings), budgets, on_account)
        belongings = SessionBelongings(
            store.catalog, skills, resources, secrets, McpCredentials(secrets, refresh)
        )
        packages = PackageLayers(belongings, provider, planner, way_out, _packages(settings))
        sandboxes = Sandboxes(
            offered,
            planner,
            way_out,
            volumes=volumes,
            files=SessionFiles(files, shared_workspaces, volumes),
            belongings=belongings,
            packages=packages,
        )
        context = HarnessContext(
            settings=settings, upstreams=await models.addresses(), origin_of=models.origin_of
        )
        harnesses, known = _harnesses(context)
        usual = WITH_A_KEY if models.is_real and WITH_A_KEY in harnesses else WITHOUT_A_KEY
        choice = HarnessChoice(known, settings.harness or usual, models.known)
        trust = Trust(offered)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offered.sweep)  # an engine that hangs must not hold up the start
            browse = _browse(
                volumes, files, shared_workspaces, choice, settings.min_free_disk << 20
            )
            archives = _archives(settings)
            kept = (sandboxes, trust, files, shared_workspaces, browse, archives)
            validation = McpValidation(refresh, way_out.outbound, seal)
            yield Workforce(harnesses, choice, *kept, budgets, models, validation, packages)


def _egress(settings: Settings, models: ModelServers) -> EgressOptions:
    return EgressOptions(
        directory=settings.data.absolute() / "run",
        upstreams=models.served,
        ports=settings.egress_ports or USUAL_PORTS,
        allow_networks=settings.egress_networks or (),
        package_hosts=settings.package_hosts or (),
    )


def _files(
    settings: Settings,
    volumes: VaultVolumes,
    store: Store,
    blobs: Blobs,
    notifier: Notifier,
    node: str,
) -> tuple[LocalWorkspaces, SharedWorkspaces]:
    notes = settings.data.absolute() / "copies"

    def tree_of(workspace_id: str) -> LocalTree:
        return LocalTree(volumes.of(workspace_id).path, notes, DEFAULT_UIDS)

    async def past_of(workspace_id: str) -> WorkspacePast:
        try:
            return WorkspacePast.of((await store.sessions.find(workspace_id)).state)
        except NotFound:
            return await shared_past(rows, store.log, workspace_id)

    snapshots = Snapshots(blobs, most_bytes=settings.max_snapshot_bytes)
    rows = store.workspaces
    files = LocalWorkspaces(
        snapshots,
        rows,
        tree_of,
        notifier,
        SnapshotQuota(snapshots, rows, settings.max_tenant_bytes),
        WorkspaceFacts(past_of, partial(rows.elsewhere, node=node), lambda: copies_in(notes)),
        SyncPace(),
    )
    return files, SharedWorkspaces(
        files, snapshots, rows, store.catalog, notifier, tree_of, node=node
    )


def _archives(settings: Settings) -> FolderArchives:
    def tree_at(path: Path) -> LocalTree:
        return LocalTree(path, path.parent / "notes", DEFAULT_UIDS)

    folder = settings.data.absolute() / "transfer"
    most, least_free = _UNPACKED * settings.max_file_bytes, settings.min_free_disk << 20
    return FolderArchives(folder, tree_at, most=most, least_free=least_free)


def _browse(
    volumes: VaultVolumes,
    files: LocalWorkspaces,
    shared_workspaces: SharedWorkspaces,
    choice: HarnessChoice,
    least_free: int,
) -> Browse:
    declared = filter(None, map(choice.declared, choice.known))
    of_any = frozenset[str]().union(*(each.own_directories for each in declared))

    def folder_of(session: Session) -> LocalFolder:
        workspace, profile = session.spec.workspace, choice.declared(session.spec.harness)
        own = profile.own_directories if profile else of_any  # its package may be gone
        hidden = own if workspace is None else frozenset()
        volume = volumes.of(workspace or session.id)
        return LocalFolder(volume.path, DEFAULT_UIDS, hidden, least_free=least_free)

    def home_of(session: Session) -> LocalFolder:
        return LocalFolder(volumes.of(session.id).path, DEFAULT_UIDS)

    return Browse(files, shared_workspaces, folder_of, home_of)


def _policy(settings: Settings) -> SandboxPolicy:
    limits = SandboxLimits(
        memory_bytes=settings.sandbox_memory * 1024**2,
        processes=settings.sandbox_processes,
        cpus=settings.sandbox_cpus,
        disk_bytes=settings.sandbox_disk * 1024**2,
    )
    return SandboxPolicy(
        forwarder=Path(forward.__file__),
        person=Path.home(),
        models=words(settings.models),
        limits=limits,
    )


def _packages(settings: Settings) -> PackagePolicy:
    """:raises StartupError: one of the variables has no value"""
    given = words(settings.package_environ or "")
    if wrong := [each for each in given if "=" not in each]:
        raise StartupError(f"ROOST_PACKAGE_ENVIRON: {wrong[0]!r} is not NAME=VALUE")
    return PackagePolicy(
        seconds=settings.package_seconds,
        environ={name: value for name, _, value in (each.partition("=") for each in given)},
        limits=replace(_policy(settings).limits, disk_bytes=settings.package_disk * 1024**2),
        kept=LayersKept(
            days=settings.package_days,
            most=settings.package_layers,
            bytes=settings.package_total_disk * 1024**2,
        ),
        least_free=settings.min_free_disk << 20,
    )


def _harnesses(context: HarnessContext) -> tuple[dict[str, Harness], dict[str, KnownHarness]]:
    """Those that can be used on this machine, and all that are known.

    :raises StartupError: there is none that the settings name
    """
    usable: dict[str, Harness] = {}
    known: dict[str, KnownHarness] = {}
    for found, harness in known_harnesses(context):
        if found.name in known:  # what is shipped comes first, and stays
            _log.warning("two harnesses are called %s", found.name, extra={"action": "start"})
            continue
        known[found.name] = found
        if harness is not None and found.missing is None:
            usable[found.name] = harness
        else:
            said = (found.name, found.missing, found.hint)
            _log.warning("no %s: %s %s", *said, extra={"action": "start"})
    wanted = context.settings.harness
    if wanted is not None and wanted not in known:
        raise StartupError(
            f"ROOST_HARNESS: there is no harness {wanted!r}",
            hint=f"There is: {', '.join(known)}.",
        )
    return usable, known


def known_harnesses(context: HarnessContext) -> Iterator[tuple[KnownHarness, Harness | None]]:
    """Every harness of a registered kind, and what it says of this machine; None: it cannot even be made.

    :raises StartupError: a factory does not understand its settings
    """
    for kind in HARNESSES:
        yield from harnesses_of(kind, context)


def harnesses_of(
    kind: str, context: HarnessContext
) -> Iterator[tuple[KnownHarness, Harness | None]]:
    """The harnesses of one kind, likewise. :raises StartupError: its factory does not understand its settings"""
    try:
        factory = HARNESSES.load(kind)
    except StartupError as broken:  # its package does not work; others do
        unmade = KnownHarness(name=kind, profile=None, missing=broken.message, hint=broken.hint)
        yield unmade, None
        return
    for harness in factory(context):
        yield KnownHarness.of(harness), harness
