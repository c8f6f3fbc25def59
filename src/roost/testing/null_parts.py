"""Parts of a node that do nothing, for tests of the others; and a runner made with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from roost.core.access.sessions import SessionAccess
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.files.given import GivenFiles
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.tasks import Tasks
from roost.core.records.timetable import Timetable
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.reports import SandboxReports
from roost.core.sandbox.running import RunningSandboxes
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness
from roost.core.sessions.lifecycle import Lifecycle, SessionQuota
from roost.core.sessions.specs import SessionSpecs, SpecRecords
from roost.core.sessions.trust import Trust
from roost.core.snapshots.snapshots import Snapshots
from roost.core.vaults.vaults import Vaults
from roost.core.work.idle import IdleAgents
from roost.core.work.leased_log import LeasedLog
from roost.core.work.prestart import Offer, Prestart
from roost.core.work.runner import RunnerParts
from roost.core.work.server_tools import ServerTools
from roost.core.work.start_limit import StartLimit
from roost.core.work.starter import AgentStarter
from roost.core.work.turn import Turns
from roost.core.work.work_items import WorkItems
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.workspaces.copies import WorkspacePast
from roost.core.workspaces.local import LocalWorkspaces, WorkspaceFacts
from roost.core.workspaces.quota import SnapshotQuota
from roost.core.workspaces.sync import SyncPace
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.budget import Budget, Spent
from roost.domain.environment import EnvironmentChoices
from roost.domain.events import Draft, Micros
from roost.domain.session import SANDBOXED_ONLY, Lease, Session, Spec, TrustLevel
from roost.domain.upstream import Upstreams
from roost.errors import CannotSeal, CannotUnseal, SandboxUnavailable
from roost.ids import mint
from roost.ports.catalog import Catalog
from roost.ports.egress import Credential, Origin, RefusalReport
from roost.ports.harness import Conversation, Harness
from roost.ports.keys import Key
from roost.ports.models import ListedModel
from roost.ports.notifier import Notifier
from roost.ports.store import Store
from roost.ports.tree import Tree
from roost.ports.workspaces import Workspaces
from roost.testing.bare_sandboxes import NoBelongings, NoFiles, NoPackages


class NoSandboxes(Sandboxes):
    """A node without sandboxes: only harnesses that start no process can work there."""

    def __init__(self, catalog: Catalog) -> None:
        self.offered = NoOfferedSandboxes()
        self.files = NoFiles()
        self.belongings = NoBelongings(catalog)
        self.packages = NoPackages()
        self.running = RunningSandboxes()


class NoOfferedSandboxes(OfferedSandboxes):
    """Trust levels, and no sandbox for any of them."""

    def __init__(self, levels: Sequence[TrustLevel] = SANDBOXED_ONLY) -> None:
        self.levels = levels

    def assigned(self, spec: Spec) -> Spec:
        """The spec as it is."""
        return spec

    def check_kind(self, kind: str) -> None:
        """Anything may be named."""

    async def check(self, spec: Spec) -> None:
        """Refuse whoever needs a sandbox. :raises SandboxUnavailable: always"""
        raise SandboxUnavailable("this server has no sandboxes")


class NoWorkspaces(LocalWorkspaces):
    """The files of sessions that have none."""

    def __init__(self) -> None:
        """Without any part of the real one."""


async def _no_past(workspace_id: str) -> WorkspacePast:
    return WorkspacePast()


async def _perhaps(workspace_id: str) -> bool:
    return True


def workspaces_of(
    snapshots: Snapshots,
    rows: Workspaces,
    tree_of: Callable[[str], Tree],
    notifier: Notifier,
    *,
    pace: SyncPace | None = None,
    past_of: Callable[[str], Awaitable[WorkspacePast]] = _no_past,
    elsewhere: Callable[[str], Awaitable[bool]] = _perhaps,
    here: Callable[[], Iterable[str]] = tuple,
    most_of_tenant: int = 0,
) -> LocalWorkspaces:
    """Workspaces of which nothing else is known: another node may have any of them, and none has a past."""
    quota = SnapshotQuota(snapshots, rows, most_of_tenant)
    facts = WorkspaceFacts(past_of, elsewhere, here)
    return LocalWorkspaces(snapshots, rows, tree_of, notifier, quota, facts, pace or SyncPace())


class NoGivenFiles(GivenFiles):
    """Gives new sessions neither files nor repositories."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    def check(self, spec: Spec, asked: Sequence[Mapping[str, Any]]) -> None:
        """Nothing may be asked for."""
        assert not asked

    @asynccontextmanager
    async def to_new(
        self,
        caller: Key,
        session_id: str,
        asked: Sequence[Mapping[str, Any]],
        drafts: Sequence[Draft],
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The session is given nothing."""
        yield []

    @asynccontextmanager
    async def to_fork(
        self, caller: Key, session: Session, target: str, until: Micros
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The fork is given nothing."""
        yield []

    @asynccontextmanager
    async def deleting(self, tenant: str, session_id: str) -> AsyncGenerator[None, None]:
        """There is nothing to take away."""
        yield


class CollectedReports:
    """Keeps what a sandbox reports."""

    def __init__(self) -> None:
        self.told: list[RefusalReport | Spent | Draft] = []

    async def refused(self, refused: RefusalReport) -> None:
        """Keep it for the test to look at."""
        self.told.append(refused)

    async def spent(self, spent: Spent) -> None:
        """Keep it for the test to look at."""
        self.told.append(spent)

    async def lacks(self, lack: Draft) -> None:
        """Keep it for the test to look at."""
        self.told.append(lack)

    async def allowed(self) -> Budget:
        """Any amount may be spent."""
        return Budget()


class UnlimitedCapacity:
    """A machine that always has room for another agent."""

    def room(self) -> int:
        """Room for more agents than a test starts."""
        return 1_000_000

    def short(self) -> bool:
        """There is always memory."""
        return False


class NoPrestart(Prestart):
    """Starts no agent before its session is made."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    def __len__(self) -> int:
        return 0

    @asynccontextmanager
    async def offer(self, tenant: str, spec: Spec) -> AsyncGenerator[Offer, None]:
        """Always a new id."""
        yield Offer(mint("sesn"))

    def made(self, session: Session) -> None:
        """The next one is not prepared for."""

    @asynccontextmanager
    async def taken(
        self, lease: Lease, session: Session, reports: SandboxReports
    ) -> AsyncGenerator[Conversation | None, None]:
        """There is no prestarted agent."""
        yield None

    def drop(self, session_id: str) -> None:
        """There is none to drop."""


class NoServerTools(ServerTools):
    """Answers no call of an agent."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    async def carry_out(self, session: Session) -> bool:
        """Nothing was to do."""
        return False


class NoWorkspaceQueue(WorkspaceQueue):
    """Lets every turn begin at once."""

    def __init__(self) -> None:
        """Without any part of the real one."""

    async def passed(self, session: Session, log: LeasedLog, since: Micros) -> bool:
        """Every turn may begin."""
        return True

    async def reopened(self, session: Session, log: LeasedLog) -> bool:
        """It may go on."""
        return True

    async def left(self, session: Session, log: LeasedLog, end: int) -> None:
        """Nobody waits for it."""

    async def gave_up(self, session: Session) -> None:
        """It did not wait."""


class EveryModel(Upstreams):
    """Servers of models that serve each one, by every API."""

    def __init__(self) -> None:
        super().__init__([])

    def check(self, model: str, api: str | None = None) -> None:
        """There is a server for it."""


class NoModelLists:
    """Servers of models that list none."""

    async def listed(self, name: str) -> Sequence[ListedModel]:
        """There is no list of models."""
        return ()


def model_at(url: str, key: str) -> Callable[[str], Origin]:
    """Where a harness finds every model: at one address, with one key."""
    origin = Origin(url=url, protocol="anthropic", credential=Credential.fixed(key, "x-api-key"))
    return lambda model: origin


class NoSeal:
    """A server without a master key, which can keep no secret."""

    key: str | None = None

    def key_of(self, sealed: str) -> str:
        """Nobody knows which key sealed it."""
        return "unknown"

    def seal(self, secret: str, about: str) -> str:
        """Refuse to seal anything. :raises CannotSeal: always"""
        raise CannotSeal

    def open(self, sealed: str, about: str) -> str:
        """Refuse to open anything. :raises CannotUnseal: always"""
        raise CannotUnseal


def known(harnesses: Mapping[str, Harness]) -> dict[str, KnownHarness]:
    """These harnesses, as a server knows them that has looked at the machine."""
    return {name: KnownHarness.of(harness) for name, harness in harnesses.items()}


def lifecycle_of(
    store: Store, notifier: Notifier, harnesses: Mapping[str, Harness], agents: Agents
) -> Lifecycle:
    """A lifecycle of sessions without files, for the first of these harnesses."""
    catalog, sessions, budgets = store.catalog, store.sessions, Budgets()
    workspaces = NamedWorkspaces(catalog, sessions, store.keys, notifier)
    vaults = Vaults(catalog, store.credentials, NoSeal())
    tasks = Tasks(catalog, notifier, Timetable(store.runs, lambda: 0))
    specs = SessionSpecs(
        SpecRecords(
            agents, Environments(catalog, EnvironmentChoices([]), NoPackages()), tasks, vaults
        ),
        workspaces,
        budgets,
        Trust(NoOfferedSandboxes()),
        HarnessChoice(known(harnesses), next(iter(harnesses)), EveryModel()),
    )
    return Lifecycle(
        sessions,
        notifier,
        SessionAccess(sessions, workspaces),
        specs,
        SessionQuota(0),
        NoPrestart(),
        NoGivenFiles(),
        budgets,
    )


def runner_parts(
    store: Store,
    notifier: Notifier,
    harnesses: Mapping[str, Harness],
    *,
    sandboxes: Sandboxes | None = None,
    limit: StartLimit | None = None,
    prestart: Prestart | None = None,
    queue: WorkspaceQueue | None = None,
    standby: StandbyRunners | None = None,
    sleep_after: float = 0,
    most_idle: int = 9,
) -> RunnerParts:
    """What runners need; whichever of it is not given does nothing."""
    log, sessions, budgets = store.log, store.sessions, Budgets()
    given = NoSandboxes(store.catalog) if sandboxes is None else sandboxes
    starter = AgentStarter(
        *(log, sessions, notifier, harnesses, given),
        StartLimit(notifier, most=64) if limit is None else limit,
        NoPrestart() if prestart is None else prestart,
        budgets,
    )
    admit = NoWorkspaceQueue() if queue is None else queue
    intake = Intake(log, notifier, StandbyRunners(), max_queued=100)
    items = WorkItems(store.catalog, sessions, log, intake, notifier, lease_seconds=90)
    beside = StandbyRunners() if standby is None else standby
    return RunnerParts(
        log=log,
        sessions=sessions,
        notifier=notifier,
        starter=starter,
        turns=Turns(log, sessions, notifier, given, admit, budgets, items),
        idle=IdleAgents(sessions, notifier, beside, seconds=sleep_after, most=most_idle),
        server_tools=NoServerTools(),
    )
