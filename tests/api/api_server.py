"""The HTTP surface over a real database, in this process; nothing works on the sessions."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter
from starlette.types import ASGIApp
from tests.stores import url_of

from roost.api.access.auth import MANAGED_AGENTS
from roost.api.access.login_attempts import LoginAttempts
from roost.api.access.tokens import SocketTokens, WorkTokens
from roost.api.access.workers import WorkerAccess
from roost.api.app import build_app
from roost.api.framework.deps import Deps
from roost.api.framework.server import ServerState
from roost.api.framework.services import Services
from roost.blobs.folder import FolderBlobs
from roost.blobs.guarded import GuardedBlobs
from roost.config import Settings, words
from roost.core.access.environment_keys import EnvironmentKeys
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.core.access.revocations import Revocations
from roost.core.access.sessions import SessionAccess
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.files.attachments import Attachments
from roost.core.files.given import GivenFiles
from roost.core.files.installation import Installation
from roost.core.files.janitor import FileJanitor
from roost.core.files.outputs import Outputs
from roost.core.files.resources import Resources
from roost.core.files.store import FileStore
from roost.core.pools.identifiers import PoolSessions
from roost.core.pools.pools import Pools
from roost.core.read.follow import Follow
from roost.core.read.large_events import EventPages
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.models import Models
from roost.core.records.skills import Skills
from roost.core.records.tasks import Tasks
from roost.core.records.timetable import Timetable
from roost.core.sandbox.budgets import Budgets
from roost.core.sessions.deployment_runs import DeploymentRuns
from roost.core.sessions.deployments import Deployments
from roost.core.sessions.forks import Forks
from roost.core.sessions.harness_choice import HarnessChoice
from roost.core.sessions.lifecycle import Lifecycle, SessionQuota
from roost.core.sessions.run_faults import RunFaults
from roost.core.sessions.scheduled_runs import RunParts
from roost.core.sessions.scheduler import Scheduler
from roost.core.sessions.specs import SessionSpecs, SpecRecords
from roost.core.sessions.task_runs import TaskRuns
from roost.core.sessions.transfer import Transfer
from roost.core.sessions.trust import Trust
from roost.core.snapshots.snapshots import Snapshots
from roost.core.vaults.mcp import McpValidation
from roost.core.vaults.refresh import OAuthRefresh
from roost.core.vaults.reseal import Reseal
from roost.core.vaults.vaults import Vaults
from roost.core.webhooks.endpoints import WebhookEndpoints
from roost.core.webhooks.sender import WebhookSender
from roost.core.work.nodes import Fleet
from roost.core.work.work_items import WorkItems
from roost.core.workspaces.browse import Browse
from roost.core.workspaces.shared import SharedWorkspaces
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.environment import EnvironmentChoices
from roost.domain.events import Micros
from roost.domain.ledger import Batch
from roost.domain.session import Lease, Session
from roost.domain.webhook import DeliveryPolicy
from roost.egress.dial import Dialer
from roost.egress.options import USUAL_PORTS, EgressBounds
from roost.egress.outbound import RestrictedHttp
from roost.errors import Unavailable
from roost.harnesses.scripted import ScriptedHarness
from roost.ports.blobs import Blobs
from roost.ports.harness import Brief, Conversation
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.notifier import Notifier
from roost.ports.store import Store
from roost.sandboxes.file_exchange import FolderExchange
from roost.sandboxes.tree import LocalFolder, LocalTree
from roost.serve.database import opened
from roost.stores.archives import FolderArchives
from roost.stores.seal import MasterKeys
from roost.stores.skills import BlobSkills, FolderSkills
from roost.testing.bare_sandboxes import NoPackages
from roost.testing.fake_harness import ALL_ABILITIES, FakeHarness
from roost.testing.null_parts import (
    EveryModel,
    NoModelLists,
    NoOfferedSandboxes,
    NoPrestart,
    NoWorkspaces,
    known,
    model_at,
    workspaces_of,
)

MASTER_KEY = bytes(range(32))
TENANT = "tenant_1"
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": MANAGED_AGENTS}


@dataclass
class ApiServer:
    store: Store
    deps: Deps
    app: ASGIApp
    notifier: Notifier
    keyring: Keyring
    client: httpx2.AsyncClient
    ahead: Micros = 0
    """How far the clock that schedules go by is ahead of the real one."""
    draining: bool = False
    stopping: bool = False
    broken: bool = False

    async def user(self, tenant: str = TENANT, **fields: Any) -> httpx2.AsyncClient:
        """A client with a new key."""
        _, secret = await self.keyring.create(tenant=tenant, name="test", **fields)
        return client_of(self.app, secret)

    async def post(self, path: str, body: Any = None, **more: Any) -> Any:
        """The answer to a request that must succeed."""
        response = await self.client.post(path, json=body, **more)
        assert response.status_code == 200, response.text
        return response.json()

    async def get(self, path: str, **params: Any) -> Any:
        """The answer to a request that must succeed."""
        response = await self.client.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def agent(self, **fields: Any) -> Any:
        return await self.post("/v1/agents", {"name": "helper", "model": "claude-x", **fields})

    async def skill(self, name: str = "greeting", **more: bytes) -> Any:
        """A skill, with these files besides its manifest."""
        return await self.post("/v1/skills", files=skill_files(name, **more))

    async def environment(self, name: str = "home", **fields: Any) -> Any:
        return await self.post("/v1/environments", {"name": name, **fields})

    async def session(self, **fields: Any) -> Any:
        """A session; its agent and environment are made unless given."""
        if "agent" not in fields:
            fields["agent"] = (await self.agent())["id"]
        if "environment_id" not in fields:
            page = await self.get("/v1/environments")
            made = page["data"][0] if page["data"] else await self.environment()
            fields["environment_id"] = made["id"]
        return await self.post("/v1/sessions", fields)

    async def say(self, session: Any, *texts: str) -> Any:
        return await self.post(f"/v1/sessions/{session['id']}/events", messages(*texts))

    async def rest(self, session: Any) -> None:
        """As if a runner had taken up what waits, and had nothing to say."""
        await self.store.log.renew("node_1", 60)
        [lease] = [
            x for x in await self.store.log.claim("node_1", 9) if x.session_id == session["id"]
        ]
        await self.finish(lease)

    async def finish(self, lease: Lease) -> None:
        takes = await self.store.log.inputs(lease.session_id)
        head = (await self.store.sessions.find(lease.session_id)).state.head
        batch = Batch(takes=takes)
        done = await self.store.log.finish(lease, head, batch, {"type": "end_turn"})
        assert done is not None
        self.notifier.notify(lease.session_id)


def skill_files(name: str, description: str = "Greets.", **more: bytes) -> Any:
    """A skill as the form of an upload."""
    manifest = f"---\nname: {name}\ndescription: {description}\n---\nSay hello.\n".encode()
    files = {"SKILL.md": manifest, **more}
    return [("files[]", (f"{name}/{path}", data)) for path, data in files.items()]


def client_of(app: ASGIApp, secret: str, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app),
        base_url="http://roost",
        headers={"x-api-key": secret, **HEADERS, **headers},
    )


class ListedHarness(FakeHarness):
    """One that sessions can name. No agent is ever started here."""

    def __init__(self, name: str, abilities: Abilities, **declared: Any) -> None:
        self.name = name
        self.profile = HarnessProfile(
            abilities=abilities, needs_sandbox=False, upstream="anthropic", **declared
        )

    def open(self, brief: Brief) -> AbstractAsyncContextManager[Conversation]:
        raise NotImplementedError


async def _nowhere(host: str, port: int) -> Sequence[str]:
    """No test of the API asks a server elsewhere."""
    raise OSError(f"{host} has no address")


@asynccontextmanager
async def api_server(data: Path, **settings: Any) -> AsyncGenerator[ApiServer, None]:
    usual = {"heartbeat_seconds": 5, "min_free_disk": 0}
    given = {**usual, "database_url": url_of(data), **settings}
    wanted = Settings.model_validate(given)
    async with opened(wanted) as (store, notifier):
        keyring = Keyring(store.keys)
        _, secret = await keyring.create(
            tenant=TENANT, name="admin", role="admin", trust_ceiling="full"
        )
        made: list[ApiServer] = []

        async def ready() -> dict[str, Any]:
            if made[0].broken:
                raise Unavailable("the disk is full")
            return {"node": "node_1"}

        least_free = wanted.min_free_disk << 20
        folder = FolderBlobs(data / "blobs", least_free=least_free)
        installation = Installation(store.catalog, store.workspaces, folder)
        await installation.start()
        blobs = GuardedBlobs(folder, installation.check)
        skills = Skills(store.catalog, BlobSkills(blobs, FolderSkills(data / "skills")))
        browse = _browse(data, store, blobs, notifier, least_free)
        workspaces = NamedWorkspaces(store.catalog, store.sessions, store.keys, notifier)
        access = SessionAccess(store.sessions, workspaces)
        filestore = FileStore(store.catalog, blobs, access, quota=wanted.max_stored_bytes)
        own = skills, browse, filestore, data
        deps = _deps(wanted, store, own, notifier, keyring, ready, made)
        app = build_app(deps)
        async with client_of(app, secret) as client:
            made.append(ApiServer(store, deps, app, notifier, keyring, client))
            yield made[0]


def _browse(data: Path, store: Store, blobs: Blobs, notifier: Notifier, least_free: int) -> Browse:
    def tree_of(workspace_id: str) -> LocalTree:
        return LocalTree(data / "homes" / workspace_id, data / "copies", range(0))

    snapshots = Snapshots(blobs)
    files = workspaces_of(snapshots, store.workspaces, tree_of, notifier)
    commons = SharedWorkspaces(
        *(files, snapshots, store.workspaces, store.catalog, notifier, tree_of), node="node_1"
    )

    def folder_of(session: Session, hidden: frozenset[str] = frozenset({".claude"})) -> LocalFolder:
        place = data / "homes" / session.id
        return LocalFolder(place, range(0), hidden, least_free=least_free)

    return Browse(files, commons, folder_of, partial(folder_of, hidden=frozenset()))


def _archives(data: Path) -> FolderArchives:
    def tree_at(path: Path) -> LocalTree:
        return LocalTree(path, path.parent / "notes", range(0))

    return FolderArchives(data / "transfer", tree_at, most=100_000_000)


def _deps(
    settings: Settings,
    store: Store,
    own: tuple[Skills, Browse, FileStore, Path],
    notifier: Notifier,
    keyring: Keyring,
    ready: Any,
    made: list[ApiServer],
) -> Deps:
    skills, browse, filestore, data = own

    def clock() -> Micros:
        return time.time_ns() // 1000 + made[0].ahead

    janitor = FileJanitor(filestore, store.catalog, store.sessions, skills.heed)
    shown = FolderExchange(data / "session-files", range(0))
    outputs = Outputs(filestore, shown, store.sessions)
    urls = words(settings.git_urls)
    seal = MasterKeys([MASTER_KEY])
    vaults = Vaults(store.catalog, store.credentials, seal)
    outbound = RestrictedHttp(Dialer(_nowhere, (), 5), EgressBounds(), USUAL_PORTS)
    resources = Resources(
        *(filestore, janitor, store.catalog, store.sessions, shown, outputs),
        seal,
        urls=urls,
    )
    attachments = Attachments(filestore, janitor)
    agents, environments = (
        Agents(store.catalog, skills, EveryModel()),
        Environments(
            store.catalog, EnvironmentChoices(["bubblewrap", "docker"], ["node"]), NoPackages()
        ),
    )
    timetable = Timetable(store.runs, clock)
    tasks = Tasks(store.catalog, notifier, timetable)
    workspaces = NamedWorkspaces(store.catalog, store.sessions, store.keys, notifier)
    scripted = ScriptedHarness(model_at("http://127.0.0.1:1", "none"), retries=0, retry_seconds=1)
    harnesses, trust = (
        {
            "scripted": scripted,
            "able": ListedHarness("able", ALL_ABILITIES, by_workers=True),
            "plain": ListedHarness("plain", Abilities()),
        },
        Trust(NoOfferedSandboxes(words(settings.trust_levels))),
    )
    budgets, choice = Budgets(), HarnessChoice(known(harnesses), "scripted", EveryModel())
    records = SpecRecords(agents, environments, tasks, vaults)
    lifecycle = Lifecycle(
        store.sessions,
        notifier,
        SessionAccess(store.sessions, workspaces),
        SessionSpecs(
            records,
            *(workspaces, budgets, trust),
            choice,
        ),
        SessionQuota(settings.max_sessions),
        NoPrestart(),
        GivenFiles(resources, attachments, janitor),
        budgets,
    )
    forks = Forks(
        *(store.sessions, store.log, notifier, lifecycle),
        trust=trust,
        files=NoWorkspaces(),
    )
    transfer = Transfer(
        *(store.sessions, store.log, notifier, lifecycle, forks, _archives(data)),
        harnesses=harnesses,
        files=NoWorkspaces(),
    )
    follow = Follow(
        store.log,
        store.sessions,
        notifier,
        store.marks,
        heartbeat=settings.heartbeat_seconds,
        catch_up=settings.catch_up_seconds,
    )
    logins = Logins(store.catalog, keyring, seconds=settings.login_seconds)
    server = ServerState(
        ready=ready,
        draining=lambda: made[0].draining,
        stopping=lambda: made[0].stopping,
    )
    intake = Intake(store.log, notifier, StandbyRunners(), max_queued=settings.max_queued)
    deployments = Deployments(store.catalog, lifecycle, notifier, timetable)
    parts = RunParts(
        runs=store.runs,
        lifecycle=lifecycle,
        keyring=keyring,
        faults=RunFaults(records, filestore),
        intake=intake,
        clock=clock,
        jitter=settings.schedule_jitter,
    )
    runs = DeploymentRuns(deployments, parts)
    task_runs = TaskRuns(store.catalog, tasks, parts, store.log, notifier)
    kinds = [runs, task_runs]
    pools = Pools(store.catalog, environments, notifier)
    environment_keys = EnvironmentKeys(store.catalog)
    items = WorkItems(
        *(store.catalog, store.sessions, store.log, intake, notifier),
        lease_seconds=settings.work_lease_seconds,
    )
    secret = b"0123456789abcdef0123456789abcdef"
    workers = WorkerAccess(environment_keys, WorkTokens(secret), lifecycle.access, items)
    services = Services(
        *(pools, PoolSessions(store.catalog, pools, lifecycle, intake, notifier)),
        *(agents, environments, skills, tasks, workspaces, filestore, vaults),
        Reseal(store.catalog, store.credentials, store.webhooks, seal),
        WebhookEndpoints(store.webhooks, seal),
        WebhookSender(store.webhooks, store.catalog, seal, outbound, DeliveryPolicy()),
        McpValidation(OAuthRefresh(store.credentials, seal, outbound), outbound, seal),
        Models(EveryModel(), NoModelLists()),
        choice,
        *(lifecycle, forks, transfer, resources, attachments, browse),
        *(follow, EventPages(store.log), Budgets()),
        intake,
        *(deployments, *kinds, Scheduler(store.catalog, store.runs, notifier, kinds, clock)),
        Fleet(store.nodes, notifier, "node_1"),
        *(environment_keys, items, workers),
        Revocations(
            *(keyring, logins, environment_keys, notifier),
            *(server.streams.openers, server.streams.close),
        ),
        LoginAttempts(),
        SocketTokens(secret, seconds=settings.token_seconds),
    )
    return Deps(
        settings=settings,
        server=server,
        keyring=keyring,
        logins=logins,
        access=lifecycle.access,
        workers=workers,
        buckets=store.buckets,
        registry=CollectorRegistry(),
        services=services,
    )


def messages(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"events": [message(text, **fields) for text in texts]}


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": text}], **fields}


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of a response that must have failed so, after checking its envelope."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert body["request_id"].startswith("req_")
    error: dict[str, Any] = body["error"]
    assert error["details"]["error_code"]
    return error


def official(model: Any, body: Any) -> Any:
    """The body as the official model, strictly: every required field, no coercion."""
    return TypeAdapter(model).validate_json(json.dumps(body), strict=True)
