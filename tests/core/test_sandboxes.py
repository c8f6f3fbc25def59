"""A session that needs a sandbox, where there is none, or one at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.core.node import TENANT, Node, message, node, texts, types, use_parts

from roost.blobs.folder import FolderBlobs
from roost.core.files.attachments import ShowingFiles
from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.networking import networking_of
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.sandbox.session_files import SessionFiles
from roost.core.snapshots.snapshots import Snapshots
from roost.core.work.nodes import Fleet
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.shared import SharedWorkspaces
from roost.disk import remove
from roost.domain.budget import Spent
from roost.domain.events import Entry
from roost.domain.session import SANDBOXED_ONLY, Session, Status
from roost.domain.sync import SyncState
from roost.domain.usage import Usage
from roost.errors import FilesNotFetched, SandboxFailed, SandboxUnavailable, WrongBlobs
from roost.ports.blobs import Blobs
from roost.ports.drafts import new_draft
from roost.ports.egress import Account, Grant, OpenGrant
from roost.ports.harness import Brief, Conversation, StartMode
from roost.ports.notifier import WORK, Notifier
from roost.ports.sandbox import Process, Stats
from roost.ports.sandbox_provider import Endpoint, Plan, UnixAddress
from roost.sandboxes.tree import LocalTree
from roost.sandboxes.volumes import VaultVolumes
from roost.testing.bare_sandboxes import bare_sandboxes
from roost.testing.fake_harness import IN_SANDBOX, FakeHarness
from roost.testing.faulty_blobs import FaultyBlobs
from roost.testing.null_parts import runner_parts, workspaces_of


class FakeSandbox:
    """A sandbox in name only."""

    has_ports = False

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> Process:
        raise NotImplementedError

    async def stats(self) -> Stats:
        return Stats(memory_bytes=None, processes=None, cpu_seconds=None)

    async def stop(self) -> None:
        pass


class FakeProvider:
    """Opens sandboxes that run nothing, while `available`; counts those that are open."""

    name = "fake"
    isolates = True

    def __init__(self, *, available: bool = True) -> None:
        self.available = available
        self.taken = 0  # how many are gone between `check` and `open`
        self.plans: list[Plan] = []
        self.open_now = 0
        self._left = anyio.Event()

    async def until_open(self, most: int) -> None:
        with anyio.fail_after(60):
            while self.open_now > most:
                await self._left.wait()

    async def check(self) -> None:
        if not self.available:
            raise SandboxUnavailable("no sandbox is free", hint="Start one.")

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[FakeSandbox, None]:
        if self.taken:
            self.taken -= 1
            raise SandboxUnavailable("it was taken meanwhile")
        self.plans.append(plan)
        self.open_now += 1
        try:
            yield FakeSandbox()
        finally:
            self.open_now -= 1
            self._left.set()
            self._left = anyio.Event()

    async def sweep(self) -> None:
        pass


class FakeEgress:
    """An egress that leads nowhere. `grants` are all that it was opened with."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []

    @asynccontextmanager
    async def open(self, grant: Grant) -> AsyncGenerator[OpenGrant, None]:
        self.grants.append(grant)
        endpoint = Endpoint(address=UnixAddress(Path("/door")), socket="/run/door")
        yield OpenGrant(endpoints=[endpoint], environ={"DOOR": "1"})


class SandboxedHarness(FakeHarness):
    """The scripted agent, except that it insists on a sandbox."""

    name = "in-sandbox"
    profile = replace(IN_SANDBOX, own_directories=frozenset({".claude"}))

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        assert brief.sandbox is not None
        async with self._inner.open(brief) as conversation:
            yield conversation


@asynccontextmanager
async def sandboxed_node(
    data: Path,
    provider: FakeProvider,
    *,
    sleep_after: float = 0,
    most: int = 9,
    harness_class: type[SandboxedHarness] = SandboxedHarness,
    notifier: Notifier | None = None,
    door: FakeEgress | None = None,
    blobs: Blobs | None = None,
) -> AsyncGenerator[Node, None]:
    async with node(data, notifier=notifier) as roost:
        files = _files(data, roost, blobs) if blobs else None
        opens = sandboxes(data / "vault", provider, door or FakeEgress(), roost, files=files)
        scripted = roost.harnesses["scripted"]
        store = roost.store
        use_parts(
            roost,
            runner_parts(
                *(store, roost.notifier, {"in-sandbox": harness_class(scripted)}),
                sandboxes=opens,
                standby=roost.standby,
                sleep_after=sleep_after,
                most_idle=most,
            ),
        )
        yield roost


def sandboxes(
    vault: Path,
    provider: FakeProvider,
    door: FakeEgress,
    roost: Node,
    *,
    others: Sequence[FakeProvider] = (),
    files: LocalWorkspaces | None = None,
    belongings: SessionBelongings | None = None,
) -> Sandboxes:
    """Sandboxes of this provider; `files`, if they are to be kept."""
    volumes = VaultVolumes(vault, vault.parent / "data")
    kept = None
    if files is not None:
        store, tree_of, snapshots = roost.store, files._tree_of, files._snapshots
        parts = (files, snapshots, store.workspaces, store.catalog, roost.notifier, tree_of)
        shared = SharedWorkspaces(*parts, node="n")
        kept = SessionFiles(files, shared, volumes)
    offered = OfferedSandboxes(provider, others, SANDBOXED_ONLY, volumes)
    return bare_sandboxes(
        offered, door, roost.store.catalog, volumes, files=kept, belongings=belongings
    )


def _files(data: Path, roost: Node, blobs: Blobs) -> LocalWorkspaces:
    def tree_of(workspace_id: str) -> LocalTree:
        return LocalTree(data / "vault" / ".workspaces" / workspace_id, data / "notes", range(0))

    return workspaces_of(Snapshots(blobs), roost.store.workspaces, tree_of, roost.notifier)


@pytest.mark.parametrize("wrong", ["away", "empty"])
async def test_while_the_store_is_wrong_the_input_waits_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
):
    monkeypatch.setattr("roost.core.work.failures._STORE_LOOKS", 0.05)
    right, is_right = FolderBlobs(tmp_path / "blobs"), True
    away = FaultyBlobs(right, lambda _: None if is_right else "refused")
    empty = FolderBlobs(tmp_path / "empty")

    class Switched(FolderBlobs):
        async def read(self, key: str) -> Any:
            chosen = right if is_right else empty if wrong == "empty" else away
            return await chosen.read(key)

    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, blobs=Switched(tmp_path / "blobs")) as roost:
        session = await roost.session(harness="in-sandbox")
        home = tmp_path / "vault" / ".workspaces" / session.id
        home.mkdir(parents=True)
        (home / "work.txt").write_text("mine")
        await roost.turn(session, "Hello")
        await provider.until_open(0)
        await until_stored(roost, session)
        remove(home)
        is_right = False
        seq = await roost.say(session, "Are you there?")
        seen = await roost.until(session, "session.status_rescheduled", seq - 1)
        (error,) = [entry.fields["error"] for entry in seen if entry.type == "session.error"]
        assert error["code"] == {"empty": "snapshots_missing", "away": "blobs_failed"}[wrong]
        assert error["retry_status"] == {"type": "retrying"}
        await anyio.sleep(0.3)
        assert types(await roost.store.log.inputs(session.id)) == ["user.message"]
        assert len(provider.plans) == 1
        is_right = True
        entries = await roost.until(session, "session.status_idle", seq - 1)
        assert types(entries).count("session.error") == 1
        assert len(texts(entries)) == 1
        assert (home / "work.txt").read_text() == "mine"


async def test_waiting_for_the_store_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.failures._STORE_LOOKS", 0.05)
    async with sandboxed_node(
        tmp_path, FakeProvider(), blobs=FolderBlobs(tmp_path / "empty")
    ) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.store.workspaces.hold(
            session.id, "", 0
        )  # it has a snapshot, which is not there
        seq = await roost.say(session, "Hello?")
        await roost.until(session, "session.status_rescheduled", seq - 1)
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        await roost.until(session, "session.status_idle", seq - 1)
        assert await roost.store.log.inputs(session.id) == []


class Unreadable:
    """Attachments of a store that is a wrong one for a while."""

    def __init__(self) -> None:
        self.wrong, self.asked, self.often = True, 0, anyio.Event()

    async def told(self, session: Session, entry: Entry) -> Entry:
        self.asked += 1
        if self.asked == 4:
            self.often.set()
        if self.wrong:
            raise WrongBlobs
        return entry


@pytest.mark.parametrize("harness", ["in-sandbox", "scripted"])
@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_message_whose_files_cannot_be_read_waits_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: str, interrupted: bool
):
    monkeypatch.setattr("roost.core.work.failures._STORE_LOOKS", 0.02)
    store = Unreadable()
    opened = sandboxed_node(tmp_path, FakeProvider()) if harness == "in-sandbox" else node(tmp_path)
    async with opened as roost:
        agents = roost.dispatcher._parts.starter._harnesses
        agents[harness] = ShowingFiles(agents[harness], store)  # type: ignore[arg-type,index]
        session = await roost.session(harness=harness)
        image = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
        text = {"type": "text", "text": "Look"}
        draft = new_draft("user.message", content=[text, image])
        seq = (await roost.intake.accept(session.id, [draft])).entries[-1].seq
        await roost.until(session, "session.status_rescheduled", seq - 1)
        with anyio.fail_after(60):
            await store.often.wait()
        if interrupted:
            await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        else:
            store.wrong = False
        entries = await roost.until(session, "session.status_idle", seq - 1)
        (error,) = [entry.fields["error"] for entry in entries if entry.type == "session.error"]
        assert (error["code"], error["retry_status"]) == ("blobs_wrong", {"type": "retrying"})
        assert len(texts(entries)) == (0 if interrupted else 1)


async def until_stored(roost: Node, session: Session) -> None:
    with anyio.fail_after(60):
        while True:
            row = await roost.store.workspaces.find(session.id)
            if row is not None and row.state is SyncState.IDLE and row.sequence:
                return
            await anyio.sleep(0.02)


async def test_a_session_has_a_directory_of_its_own_and_the_way_out(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "Hello")
        (plan,) = provider.plans
        assert (
            plan.home.path == plan.workspace.path == tmp_path / "vault" / ".workspaces" / session.id
        )
        assert plan.home.path.is_dir()
        assert plan.environ == {"DOOR": "1"}
        assert [each.socket for each in plan.endpoints] == ["/run/door"]


async def test_a_new_sandbox_has_spent_what_the_ones_before_it_have(tmp_path: Path):
    before: list[Spent] = []

    class Spending(FakeEgress):
        """One request goes out while the place is open."""

        @asynccontextmanager
        async def open(self, grant: Grant) -> AsyncGenerator[OpenGrant, None]:
            async with super().open(grant) as endpoints:
                before.append((await roost.store.sessions.find(session.id)).state.spent)
                used = Usage(1000, 0)
                await grant.account(
                    Account(session_id=session.id, model="m", usage=used, status=200, seconds=0.1)
                )
                yield endpoints

    door = Spending()
    async with sandboxed_node(tmp_path, FakeProvider(), door=door) as roost:
        session = await roost.session(harness="in-sandbox")
        for turn in range(3):
            await roost.turn(session, "Hello")
            grant = door.grants[turn]
            assert grant.spent.requests == turn
            assert grant.spent.tokens >= 1000 * turn
            assert grant.spent.tokens >= before[turn].tokens


async def test_where_there_is_no_room_the_input_waits_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.sandbox.available._LOOK_AGAIN", 0.05)
    provider = FakeProvider(available=False)
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        seen = await roost.until(session, "session.status_rescheduled")
        (error,) = [entry.fields["error"] for entry in seen if entry.type == "session.error"]
        assert error["message"] == "no sandbox is free. Start one."
        assert error["retry_status"] == {"type": "retrying"}
        await anyio.sleep(0.2)
        assert len(await roost.store.log.inputs(session.id)) == 1
        assert provider.plans == []
        provider.available = True
        entries = await roost.until(session, "session.status_idle")
        assert types(entries).count("session.error") == 1
        assert len(texts(entries)) == 1


class LazyHarness(SandboxedHarness):
    """Its sandbox is opened by its first command."""

    profile = replace(IN_SANDBOX, on_demand=True)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        assert brief.sandbox is not None
        with suppress(NotImplementedError):  # the fake one runs nothing
            await brief.sandbox.spawn(["true"])
        async with super().open(brief) as conversation:
            yield conversation


async def test_whoever_needs_its_sandbox_later_waits_for_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.sandbox.available._LOOK_AGAIN", 0.05)
    provider = FakeProvider(available=False)
    async with sandboxed_node(tmp_path, provider, harness_class=LazyHarness) as roost:
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        await roost.until(session, "session.error")
        await anyio.sleep(0.2)  # it looks again, and does not give up
        assert provider.plans == []
        provider.available = True
        entries = await roost.until(session, "session.status_idle")
    (error,) = [entry.fields["error"] for entry in entries if entry.type == "session.error"]
    assert error["message"] == "no sandbox is free. Start one."
    assert error["retry_status"] == {"type": "retrying"}
    assert len(texts(entries)) == 1
    assert len(provider.plans) == 1


async def test_a_room_that_is_gone_when_it_is_opened_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.0, 0.0, 0.0))
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider) as roost:
        provider.taken = 2
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        entries = await roost.until(session, "session.status_idle")
        assert len(texts(entries)) == 1
        errors = [entry.fields["error"] for entry in entries if entry.type == "session.error"]
        assert [error["message"] for error in errors] == ["it was taken meanwhile"] * 2


async def test_a_room_that_never_opens_leaves_the_input_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.0, 0.0, 0.0))
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider) as roost:
        provider.taken = 4
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        entries = await roost.until(session, "session.status_idle")
        assert entries[-1].fields["stop_reason"] == {"type": "retries_exhausted"}
        assert types(await roost.store.log.inputs(session.id)) == ["user.message"]
        assert len(texts(await roost.turn(session, "And now?"))) >= 1


async def test_a_warm_agent_keeps_its_room_and_its_lease_until_it_sleeps(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=0.5) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "one")
        await roost.turn(session, "two")
        assert len(provider.plans) == 1
        assert roost.dispatcher.busy == 0
        await provider.until_open(0)
        (answer,) = texts(await roost.turn(session, "three"))
        assert "3 user messages" in answer
        assert [plan.generation for plan in provider.plans] == [1, 2]


async def test_the_agent_that_idled_longest_makes_room_for_another(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60, most=2) as roost:
        sessions = [await roost.session(harness="in-sandbox") for _ in range(3)]
        for session in sessions:
            await roost.turn(session, "Hello")
        await provider.until_open(2)
        await roost.turn(sessions[1], "you stayed")
        assert len(provider.plans) == 3
        await roost.turn(sessions[0], "you slept")
        assert len(provider.plans) == 4


class Short:
    """A machine whose memory is short for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def room(self) -> int:
        return 9

    def short(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


async def test_agents_that_rest_end_one_after_the_other_while_memory_is_short(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        sessions = [await roost.session(harness="in-sandbox") for _ in range(3)]
        for session in sessions:
            await roost.turn(session, "Hello")
        roost.dispatcher._machine = Short(looks=2)
        roost.notifier.notify(WORK)
        await provider.until_open(1)
        await roost.turn(sessions[2], "you stayed")
        assert len(provider.plans) == 3


async def test_agents_that_rest_leave_a_node_that_drains_and_come_back(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "Hello")
        await provider.until_open(1)
        fleet = Fleet(roost.store.nodes, roost.notifier, roost.dispatcher.node)
        await fleet.mark(roost.dispatcher.node, draining=True)
        await provider.until_open(0)
        sent = await roost.say(session, "Is anybody there?")
        await fleet.mark(roost.dispatcher.node, draining=False)
        assert len(texts(await roost.until(session, "session.status_idle", sent))) == 1
        await provider.until_open(1)


async def test_an_archived_session_gives_its_room_back_at_once(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "Hello")
        await roost.store.sessions.archive(TENANT, session.id)
        roost.notifier.notify(f"inbox:{session.id}")
        await provider.until_open(0)
        found = await roost.store.sessions.get(TENANT, session.id)
        assert found.state.status is Status.TERMINATED


def test_an_environment_says_what_its_sessions_may_reach():
    limited = {"type": "limited", "allowed_hosts": ["a.example"], "allow_package_managers": True}
    assert networking_of({"networking": {"type": "unrestricted"}}).kind == "unrestricted"
    assert networking_of({"networking": limited}).allowed_hosts == ["a.example"]
    assert networking_of({"networking": limited}).package_managers
    assert networking_of({}).kind == "none"


def test_an_agents_mcp_servers_can_be_reached_where_the_environment_says_so():
    servers = [{"url": "https://tools.example:8443/mcp"}, {"url": "http://[::1]/"}]
    limited = {"type": "limited", "allowed_hosts": ["a.example"], "allow_mcp_servers": False}
    assert networking_of({"networking": limited}, servers).allowed_hosts == ["a.example"]
    limited["allow_mcp_servers"] = True
    allowed = networking_of({"networking": limited}, servers).allowed_hosts
    assert allowed == ["a.example", "tools.example", "::1"]


class NoEngine(FakeProvider):
    """A kind of place that this machine does not have."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def sweep(self) -> None:
        raise SandboxUnavailable("no engine")


@pytest.mark.parametrize(("missing", "warnings"), [("another", 0), ("usual", 1)])
async def test_only_a_missing_sandbox_that_sessions_usually_get_is_worth_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str, warnings: int
):
    usual, another = FakeProvider(), FakeProvider()
    usual.name, another.name = "usual", "another"
    given = [NoEngine(missing) if each.name == missing else each for each in (usual, another)]
    volumes = VaultVolumes(tmp_path, tmp_path.parent)
    await OfferedSandboxes(given[0], given[1:], SANDBOXED_ONLY, volumes).sweep()
    assert [record.levelname for record in caplog.records].count("WARNING") == warnings


async def test_nothing_is_left_of_a_session_that_never_was(tmp_path: Path):
    async with sandboxed_node(
        tmp_path, FakeProvider(), blobs=FolderBlobs(tmp_path / "blobs")
    ) as roost:
        opens = roost.dispatcher._parts.starter._sandboxes
        assert opens is not None
        files = opens.files._own
        home = tmp_path / "vault" / ".workspaces" / "sesn_never"
        home.mkdir(parents=True)
        async with files.open("sesn_never", 1):
            pass
        assert await roost.store.workspaces.find("sesn_never") is not None
        await opens.remove("sesn_never")
        assert await roost.store.workspaces.find("sesn_never") is None
        for folder in ("vault", "notes"):
            assert list((tmp_path / folder).rglob("*sesn_never*")) == []


class AwaySandboxes(FakeProvider):
    """Opens sandboxes on another machine, so to say; the second time that files are brought back, that one is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.brought = 0
        self.lost = False
        self.failure: SandboxFailed = SandboxFailed("the container is gone")

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[FakeSandbox, None]:
        async with super().open(plan):
            yield AwayFake(self, plan)


class AwayFake(FakeSandbox):
    def __init__(self, provider: AwaySandboxes, plan: Plan) -> None:
        self._provider = provider
        self._plan = plan
        self.is_behind = provider.lost

    async def bring_back(self) -> None:
        self._provider.brought += 1
        if self._provider.brought == 2:
            self._provider.lost = True
            raise self._provider.failure
        await anyio.Path(self._plan.home.path / "work.txt").write_text(str(self._provider.brought))


async def test_files_of_a_sandbox_elsewhere_come_back_before_a_turn_is_over(tmp_path: Path):
    starts: list[StartMode] = []

    class Noting(SandboxedHarness):
        @asynccontextmanager
        async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
            starts.append(brief.start)
            async with super().open(brief) as conversation:
                yield conversation

    provider = AwaySandboxes()
    async with sandboxed_node(tmp_path, provider, harness_class=Noting) as roost:
        session = await roost.session(harness="in-sandbox")
        file = tmp_path / "vault" / ".workspaces" / session.id / "work.txt"
        await roost.turn(session, "Hello")
        assert file.read_text() == "1"
        entries = await roost.turn(session, "Once more")
        assert len(texts(entries)) == 1  # it is taken up, and says nothing twice
        assert (file.read_text(), provider.brought) == ("3", 3)
    assert starts.pop() is StartMode.RESUME_BEHIND
    assert StartMode.RESUME_BEHIND not in starts


async def test_a_turn_whose_files_cannot_be_fetched_is_taken_once_and_that_is_said(tmp_path: Path):
    provider = AwaySandboxes()
    provider.failure = FilesNotFetched("they are over the limit")
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(harness="in-sandbox")
        file = tmp_path / "vault" / ".workspaces" / session.id / "work.txt"
        await roost.turn(session, "Hello")
        entries = await roost.turn(session, "Too much")
        assert len(texts(entries)) == 1
        (said,) = [e.fields["error"] for e in entries if e.type == "session.error"]
        assert (said["code"], said["retry_status"]["type"]) == ("files_not_fetched", "retrying")
        assert said["message"].startswith("they are over the limit. Fetching is tried again after")
        assert (file.read_text(), provider.brought) == ("1", 2)
        await roost.turn(session, "Less")
        assert (file.read_text(), provider.brought) == ("3", 3)
    assert len(provider.plans) == 3  # one for each turn
