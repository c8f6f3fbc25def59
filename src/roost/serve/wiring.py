"""The only place that names concrete classes: which adapter stands behind which port."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from roost import __version__
from roost.api.access.login_attempts import LoginAttempts
from roost.api.access.tokens import SocketTokens, WorkTokens
from roost.api.access.workers import WorkerAccess
from roost.api.app import build_app
from roost.api.framework.deps import Deps
from roost.api.framework.server import OpenStreams, ServerState
from roost.api.framework.services import Services
from roost.blobs import choice as blobs
from roost.blobs.guarded import GuardedBlobs
from roost.config import Settings, words
from roost.core.access.environment_keys import EnvironmentKeys
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.core.access.revocations import Revocations
from roost.core.access.sessions import SessionAccess
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.concurrency import alongside
from roost.core.files.attachments import Attachments, ShowingFiles
from roost.core.files.given import GivenFiles
from roost.core.files.installation import Installation
from roost.core.files.janitor import FileJanitor
from roost.core.files.outputs import OutputLimits, Outputs
from roost.core.files.resources import Resources
from roost.core.files.store import FileStore
from roost.core.pools.executions import PoolExecutions
from roost.core.pools.identifiers import PoolSessions
from roost.core.pools.pools import Pools
from roost.core.pools.ready import ReadyInterpreters
from roost.core.read.fanout import Fanout
from roost.core.read.follow import Follow
from roost.core.read.large_events import EventPages
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.models import Models
from roost.core.records.skills import Skills
from roost.core.records.tasks import Tasks
from roost.core.records.timetable import Timetable
from roost.core.sessions.deployment_runs import DeploymentRuns
from roost.core.sessions.deployments import Deployments
from roost.core.sessions.forks import Forks
from roost.core.sessions.lifecycle import Lifecycle, SessionQuota
from roost.core.sessions.run_faults import RunFaults
from roost.core.sessions.scheduled_runs import RunParts
from roost.core.sessions.scheduler import Scheduler
from roost.core.sessions.specs import SessionSpecs, SpecRecords
from roost.core.sessions.task_runs import TaskRuns
from roost.core.sessions.transfer import Transfer
from roost.core.vaults.reseal import Reseal
from roost.core.vaults.secrets import VaultSecrets
from roost.core.vaults.vaults import Vaults
from roost.core.webhooks.endpoints import WebhookEndpoints
from roost.core.webhooks.sender import WebhookSender
from roost.core.work.dispatch import Dispatcher
from roost.core.work.idle import IdleAgents
from roost.core.work.nodes import Fleet, NodeLease
from roost.core.work.prestart import Prestart, PrestartSettings
from roost.core.work.runner import RunnerParts
from roost.core.work.server_tools import ServerTools
from roost.core.work.start_limit import StartLimit
from roost.core.work.starter import AgentStarter
from roost.core.work.turn import Turns
from roost.core.work.work_items import WorkItems
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.write.announced_log import AnnouncedLog
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.disk import free
from roost.domain.environment import EnvironmentChoices
from roost.domain.events import Micros
from roost.domain.webhook import DeliveryPolicy
from roost.egress.dial import WebhookDialer, resolve
from roost.egress.listing import UpstreamModelLists
from roost.egress.options import EgressBounds
from roost.egress.outbound import RestrictedHttp
from roost.errors import DiskFull, Unavailable
from roost.gateway.app import Gateway, ProtocolRouter
from roost.gateway.task_updates import TaskUpdates
from roost.ids import mint
from roost.pool.app import PoolApp, PoolRouter
from roost.ports.log import Log
from roost.ports.nodes import About
from roost.ports.notifier import Notifier
from roost.ports.seal import Seal
from roost.sandboxes.bubblewrap.provider import DEFAULT_UIDS
from roost.sandboxes.choice import fallbacks
from roost.sandboxes.file_exchange import FolderExchange
from roost.sandboxes.machine import Machine
from roost.serve.accounts import ModelMeters
from roost.serve.agents import Workforce, open_workforce
from roost.serve.database import SharedStore, opened
from roost.serve.first_start import ensure_administrator, home_of, token_secret
from roost.serve.gauges import count_node
from roost.serve.master_key import master_keys, placeholder_key
from roost.stores.skills import BlobSkills, FolderSkills
from roost.web.site import Site


class Drain:
    """Whether the server is on its way out, and says goodbye to those who follow sessions.

    While it stops, nobody can begin to follow; whatever else is asked is answered until the end.
    """

    def __init__(self, member: NodeLease) -> None:
        self.stopping = False
        self.streams = OpenStreams()
        self._member = member
        member.changed = self._changed

    @property
    def draining(self) -> bool:
        """Whether this node hands its work over."""
        return self._member.draining

    def begin(self) -> None:
        """Stop. Once; there is no way back."""
        self.stopping = True
        self.streams.close()

    def _changed(self) -> None:
        if self.draining:
            self.streams.close()


@dataclass(frozen=True)
class Roost:
    """A server, assembled and not yet listening."""

    app: ASGIApp
    dispatcher: Dispatcher
    prestart: Prestart
    drain: Drain
    admin_key: Path
    model: str


@dataclass(frozen=True)
class _Ground:
    """What everything else stands on."""

    settings: Settings
    store: SharedStore
    notifier: Notifier
    registry: CollectorRegistry
    skills: Skills
    workspaces: NamedWorkspaces
    filestore: FileStore
    janitor: FileJanitor
    resources: Resources
    attachments: Attachments
    workforce: Workforce
    machine: Machine
    node: str
    installation: Installation
    vaults: Vaults
    reseal: Reseal
    endpoints: WebhookEndpoints
    sender: WebhookSender


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncGenerator[Roost, None]:
    """Open everything in order; close it in reverse when the context ends."""
    async with _ground(settings) as ground:
        store, notifier, workforce = ground.store, ground.notifier, ground.workforce
        tasks = Tasks(store.catalog, notifier, Timetable(store.runs, _wall_clock))
        fanout = Fanout(store.log, store.sessions, notifier, store.nodes, workforce.files.status)
        log = AnnouncedLog(store.log, fanout.committed)
        standby = StandbyRunners()
        intake = Intake(log, notifier, standby, max_queued=settings.max_queued)
        member = _member(ground)
        server_tools = ServerTools(store.log, intake, tasks)
        items = _work_items(ground, log, intake)
        dispatcher, prestart = _workers(ground, member, log, server_tools, standby, items)
        keyring, drain = Keyring(store.keys), Drain(member)
        admin_key = await ensure_administrator(keyring, settings)
        secret = await store.share("tokens", token_secret(settings.data))
        deps = _deps(ground, intake, tasks, dispatcher, prestart, keyring, drain, secret, items)
        gateway = Gateway(
            deps, fanout, TaskUpdates(tasks, notifier), workforce.sandboxes.running.stats
        )
        async with anyio.create_task_group() as services:
            await services.start(gateway.run)
            await services.start(deps.services[TaskRuns].run)
            await services.start(deps.services[Scheduler].run)
            await services.start(deps.services[Revocations].run)
            await services.start(deps.services[PoolSessions].run)
            await services.start(deps.services[ReadyInterpreters].run)
            await services.start(items.run)
            api = PoolRouter(PoolApp(deps), build_app(deps))
            app = Site(ProtocolRouter(api, gateway))
            yield Roost(app, dispatcher, prestart, drain, admin_key, workforce.models.description)
            services.cancel_scope.cancel()


@asynccontextmanager
async def _ground(settings: Settings) -> AsyncGenerator[_Ground, None]:
    registry = CollectorRegistry()
    counts, node = ModelMeters(registry).count, mint("node")
    async with opened(settings) as (store, notifier):
        chosen = blobs.chosen(settings)
        installation = Installation(store.catalog, store.workspaces, chosen)
        await installation.start()
        kept = GuardedBlobs(chosen, installation.check)
        unpacked = FolderSkills(settings.data.absolute() / "skills")
        skills = Skills(store.catalog, BlobSkills(kept, unpacked))
        workspaces = NamedWorkspaces(store.catalog, store.sessions, store.keys, notifier)
        access = SessionAccess(store.sessions, workspaces)
        filestore = FileStore(store.catalog, kept, access, quota=settings.max_stored_bytes)
        janitor = FileJanitor(filestore, store.catalog, store.sessions, skills.heed)
        seal = master_keys(settings)
        resources = _resources(settings, store, filestore, janitor, seal)
        vaults = Vaults(store.catalog, store.credentials, seal)
        reseal = Reseal(store.catalog, store.credentials, store.webhooks, seal)
        endpoints = WebhookEndpoints(store.webhooks, seal)
        sender = _sender(settings, store, seal)
        shared = await store.share("placeholders", placeholder_key(settings.data, seal))
        secrets = VaultSecrets(store.credentials, seal, shared)
        attachments = Attachments(filestore, janitor)
        async with (
            open_workforce(
                *(settings, store, kept, notifier, skills, resources, secrets, seal, counts, node)
            ) as workforce,
            alongside(workforce.files.run),
            alongside(workforce.shared_workspaces.run),
            alongside(workforce.packages.run),
            alongside(janitor.run),
            alongside(installation.run),
            alongside(sender.run),
        ):
            machine = Machine(
                agent_memory=settings.agent_memory << 20,
                least_free=settings.min_free_memory << 20,
                max_load=settings.max_load,
            )
            shown = {n: ShowingFiles(h, attachments) for n, h in workforce.harnesses.items()}
            able = changed(workforce, harnesses=shown)
            own = skills, workspaces, filestore, janitor, resources, attachments, able, machine
            yield _Ground(
                *(settings, store, notifier, registry, *own, node, installation, vaults, reseal),
                *(endpoints, sender),
            )


def _sender(settings: Settings, store: SharedStore, seal: Seal) -> WebhookSender:
    bounds = EgressBounds()
    dialer = WebhookDialer(resolve, settings.webhook_networks or (), bounds.connect_seconds)
    outbound = RestrictedHttp(dialer, bounds, None)
    policy = DeliveryPolicy(keep_seconds=settings.webhook_days * 86400)
    return WebhookSender(store.webhooks, store.catalog, seal, outbound, policy)


def _resources(
    settings: Settings, store: SharedStore, filestore: FileStore, janitor: FileJanitor, seal: Seal
) -> Resources:
    shown = FolderExchange(settings.data.absolute() / "session-files", DEFAULT_UIDS)
    bounds = OutputLimits(largest=settings.max_file_bytes)
    outputs = Outputs(filestore, shown, store.sessions, bounds)
    urls = words(settings.git_urls)
    parts = (filestore, janitor, store.catalog, store.sessions, shown, outputs)
    return Resources(*parts, seal, urls=urls)


def _work_items(ground: _Ground, log: Log, intake: Intake) -> WorkItems:
    store = ground.store
    return WorkItems(
        *(store.catalog, store.sessions, log, intake, ground.notifier),
        lease_seconds=ground.settings.work_lease_seconds,
    )


def _member(ground: _Ground) -> NodeLease:
    settings, store = ground.settings, ground.store
    return NodeLease(
        ground.node,
        store.log,
        store.nodes,
        ground.notifier,
        lease_seconds=settings.lease_seconds,
    )


def _workers(
    ground: _Ground,
    member: NodeLease,
    log: Log,
    server_tools: ServerTools,
    standby: StandbyRunners,
    items: WorkItems,
) -> tuple[Dispatcher, Prestart]:
    settings, store, notifier, workforce = (
        ground.settings,
        ground.store,
        ground.notifier,
        ground.workforce,
    )
    # What is started ahead counts as kept awake: so there is always room for it.
    most = max(1, settings.max_live - settings.prestart)
    idle = IdleAgents(store.sessions, notifier, standby, seconds=settings.sleep_after, most=most)
    limit = StartLimit(notifier, settings.max_starts or 2 * (os.cpu_count() or 1))
    prestart = Prestart(
        store.log,
        store.sessions,
        notifier,
        workforce.harnesses,
        workforce.sandboxes,
        limit,
        PrestartSettings(
            size=settings.prestart if settings.sleep_after else 0,
            seconds=settings.sleep_after,
            notes=_prestart_notes(settings.data),
        ),
        room=lambda: 0 if member.draining else settings.max_live - len(idle),
    )
    dispatcher = Dispatcher(
        member,
        _runner_parts(ground, log, server_tools, idle, limit, prestart, items),
        max_runners=settings.max_runners,
        drain_seconds=settings.drain_seconds,
        machine=ground.machine,
    )
    fixed = About(
        name=settings.node_name or socket.gethostname(),
        home=home_of(settings.data),
        version=__version__,
        started_at=time.time_ns() // 1000,
        most=settings.max_runners,
    )
    dispatcher.member.about = partial(_about, fixed, dispatcher, prestart)
    return dispatcher, prestart


def _runner_parts(
    ground: _Ground,
    log: Log,
    server_tools: ServerTools,
    idle: IdleAgents,
    limit: StartLimit,
    prestart: Prestart,
    items: WorkItems,
) -> RunnerParts:
    store, notifier, workforce = ground.store, ground.notifier, ground.workforce
    queue = WorkspaceQueue(log, notifier, store.workspaces, workforce.shared_workspaces)
    return RunnerParts(
        log=log,
        sessions=store.sessions,
        notifier=notifier,
        starter=AgentStarter(
            log,
            store.sessions,
            notifier,
            workforce.harnesses,
            workforce.sandboxes,
            limit,
            prestart,
            workforce.budgets,
        ),
        turns=Turns(
            log, store.sessions, notifier, workforce.sandboxes, queue, workforce.budgets, items
        ),
        idle=idle,
        server_tools=server_tools,
    )


def _prestart_notes(data: Path) -> Path:
    """Where agents that were started ahead are noted; by the name it had before, it is taken over."""
    before, notes = data / "pool", data / "prestart"
    if before.is_dir() and not notes.exists():
        before.rename(notes)
    return notes


def _about(fixed: About, dispatcher: Dispatcher, prestart: Prestart) -> About:
    return replace(
        fixed,
        sessions=dispatcher.running,
        working=dispatcher.busy,
        warm=dispatcher.running - dispatcher.busy,
        waking=dispatcher.starting,
        live=dispatcher.running + len(prestart),
    )


def _lifecycle(
    ground: _Ground,
    records: SpecRecords,
    prestart: Prestart,
    workspaces: NamedWorkspaces,
) -> Lifecycle:
    workforce, sessions = ground.workforce, ground.store.sessions
    specs = SessionSpecs(
        records,
        workspaces,
        workforce.budgets,
        workforce.trust,
        workforce.choice,
    )
    return Lifecycle(
        sessions,
        ground.notifier,
        SessionAccess(sessions, workspaces),
        specs,
        SessionQuota(ground.settings.max_sessions),
        prestart,
        GivenFiles(ground.resources, ground.attachments, ground.janitor),
        workforce.budgets,
    )


def _choices(workforce: Workforce) -> EnvironmentChoices:
    return EnvironmentChoices(fallbacks(), workforce.packages.images)


def _deps(
    ground: _Ground,
    intake: Intake,
    tasks: Tasks,
    dispatcher: Dispatcher,
    prestart: Prestart,
    keyring: Keyring,
    drain: Drain,
    secret: bytes,
    items: WorkItems,
) -> Deps:
    settings, store, notifier, workforce = (
        ground.settings,
        ground.store,
        ground.notifier,
        ground.workforce,
    )
    agents, environments = (
        Agents(store.catalog, ground.skills, workforce.models.known),
        Environments(store.catalog, _choices(workforce), workforce.packages),
    )
    workspaces = ground.workspaces
    count_node(ground.registry, dispatcher, prestart, ground.machine)
    records = SpecRecords(agents, environments, tasks, ground.vaults)
    lifecycle = _lifecycle(ground, records, prestart, workspaces)
    forks, transfer = _ways_back(ground, lifecycle)
    logins = Logins(store.catalog, keyring, seconds=settings.login_seconds)
    streams = drain.streams
    environment_keys = EnvironmentKeys(store.catalog)
    workers = WorkerAccess(environment_keys, WorkTokens(secret), lifecycle.access, items)
    services = Services(
        Models(workforce.models.known, UpstreamModelLists(workforce.models.served)),
        workforce.choice,
        *(agents, environments, ground.skills, tasks, workspaces, ground.filestore),
        *(ground.vaults, ground.reseal, workforce.validation, ground.endpoints, ground.sender),
        *(lifecycle, forks, transfer, ground.resources, ground.attachments, workforce.browse),
        *(intake, workforce.budgets, _follow(ground), EventPages(store.log)),
        *_schedules(ground, records, lifecycle, keyring, intake),
        *_pools(ground, environments, lifecycle, intake, prestart),
        Fleet(store.nodes, notifier, dispatcher.node),
        *(environment_keys, items, workers),
        Revocations(keyring, logins, environment_keys, notifier, streams.openers, streams.close),
        LoginAttempts(),
        SocketTokens(secret, seconds=settings.token_seconds),
    )
    return Deps(
        settings=settings,
        server=_server_state(ground, dispatcher, drain),
        keyring=keyring,
        logins=logins,
        access=lifecycle.access,
        workers=workers,
        buckets=store.buckets,
        registry=ground.registry,
        services=services,
    )


def _server_state(ground: _Ground, dispatcher: Dispatcher, drain: Drain) -> ServerState:
    async def ready() -> dict[str, Any]:
        await ground.store.ping()
        ground.installation.ready()
        await to_thread.run_sync(_check_room, ground.settings)
        return {"node": dispatcher.node, "runners": dispatcher.busy}

    return ServerState(
        ready=ready,
        draining=lambda: drain.draining,
        stopping=lambda: drain.stopping,
        streams=drain.streams,
    )


def _pools(
    ground: _Ground,
    environments: Environments,
    lifecycle: Lifecycle,
    intake: Intake,
    prestart: Prestart,
) -> tuple[Pools, PoolSessions, PoolExecutions, ReadyInterpreters]:
    store, notifier = ground.store, ground.notifier
    pools = Pools(store.catalog, environments, notifier)
    sessions = PoolSessions(store.catalog, pools, lifecycle, intake, notifier)
    executions = PoolExecutions(store.log, store.sessions, intake, notifier)
    ready = ReadyInterpreters(store.catalog, lifecycle.specs, prestart, notifier)
    return pools, sessions, executions, ready


def _schedules(
    ground: _Ground,
    records: SpecRecords,
    lifecycle: Lifecycle,
    keyring: Keyring,
    intake: Intake,
) -> tuple[Deployments, DeploymentRuns, TaskRuns, Scheduler]:
    store, notifier = ground.store, ground.notifier
    timetable = Timetable(store.runs, _wall_clock)
    deployments = Deployments(store.catalog, lifecycle, notifier, timetable)
    parts = RunParts(
        runs=store.runs,
        lifecycle=lifecycle,
        keyring=keyring,
        faults=RunFaults(records, ground.filestore),
        intake=intake,
        clock=_wall_clock,
        jitter=ground.settings.schedule_jitter,
    )
    runs = DeploymentRuns(deployments, parts)
    tasks = TaskRuns(store.catalog, records.tasks, parts, store.log, notifier)
    scheduler = Scheduler(store.catalog, store.runs, notifier, [runs, tasks], _wall_clock)
    return deployments, runs, tasks, scheduler


def _wall_clock() -> Micros:
    return time.time_ns() // 1000


def _check_room(settings: Settings) -> None:
    """Refuse to be ready while a disk is nearly full.

    :raises Unavailable: there is too little room on one of the disks that are written to
    """
    vault = settings.vault or settings.data / "vault"
    for folder in (settings.data, vault, blobs.folder_of(settings)):
        left = settings.min_free_disk if folder is None else free(folder.absolute()) >> 20
        if left < settings.min_free_disk:
            raise Unavailable(
                f"{folder} has {left} MiB free, fewer than {settings.min_free_disk}",
                hint=DiskFull.hint,
            )


def _follow(ground: _Ground) -> Follow:
    settings, store = ground.settings, ground.store
    return Follow(
        *(store.log, store.sessions, ground.notifier, store.marks),
        heartbeat=settings.heartbeat_seconds,
        catch_up=settings.catch_up_seconds,
        since=time.time_ns() // 1000,
    )


def _ways_back(ground: _Ground, lifecycle: Lifecycle) -> tuple[Forks, Transfer]:
    store, workforce = ground.store, ground.workforce
    ways = (store.sessions, store.log, ground.notifier, lifecycle)
    forks = Forks(*ways, trust=workforce.trust, files=workforce.files)
    archives = workforce.archives
    return forks, Transfer(
        *ways, forks, archives, harnesses=workforce.harnesses, files=workforce.files
    )
