"""What trust a session is given, where the sandbox it would get is missing, and what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import AGENT, TENANT, Node, message, node, texts, types, use_parts
from tests.core.test_sandboxes import FakeEgress, FakeProvider, SandboxedHarness

from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sessions.trust import Trust
from roost.domain.events import Draft, Entry
from roost.domain.session import Lease, Session, Spec, State, TrustLevel
from roost.errors import Forbidden, InvalidRequest, SandboxUnavailable
from roost.ids import mint
from roost.ports.catalog import Record
from roost.ports.egress import Networking
from roost.ports.harness import Brief, StartMode
from roost.ports.keys import Key
from roost.ports.notifier import WORK
from roost.ports.sandbox_provider import Mount
from roost.sandboxes.volumes import VaultVolumes
from roost.testing.bare_sandboxes import bare_sandboxes
from roost.testing.null_parts import CollectedReports, runner_parts

LIMITED = Networking(kind="limited")
FREE = Networking(kind="unrestricted")
EVERY: list[TrustLevel] = ["sandboxed", "vault", "full"]


class Named(FakeProvider):
    def __init__(self, name: str, *, available: bool = True) -> None:
        super().__init__(available=available)
        self.name = name


def spec(**fields: Any) -> Spec:
    return Spec(agent=AGENT, environment_id="env_1", harness="in-sandbox", **fields)


def key(ceiling: TrustLevel = "full") -> Key:
    about = {"id": "key_1", "tenant": TENANT, "name": "k", "role": "user"}
    return Key(**about, digest=b"", hint="", created_at=0, trust_ceiling=ceiling)  # type: ignore[arg-type]


class TwoProviders:
    """A server with sandboxes of two kinds, and the host; `docker` is what it gives by default."""

    def __init__(self, catalog: Any, vault: Path, levels: list[TrustLevel]) -> None:
        self.docker, self.bubblewrap = Named("docker"), Named("bubblewrap")
        self.host = Named("host")
        self.host.isolates = False
        self.levels = levels
        self.catalog = catalog
        self.volumes = volumes = VaultVolumes(vault, vault.parent / "data")
        others = [self.bubblewrap, self.host]
        self.offered = OfferedSandboxes(self.docker, others, levels, volumes)
        self.sandboxes = bare_sandboxes(self.offered, FakeEgress(), catalog, volumes)
        self.trust = Trust(self.offered)


@pytest.fixture
def server(tmp_path: Path) -> TwoProviders:
    return TwoProviders(None, tmp_path / "vault", list(EVERY))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_session_keeps_the_kind_of_sandbox_it_was_given(server: TwoProviders):
    assert (await server.trust.placed(spec(), LIMITED)).sandbox == "docker"
    for level in ("vault", "full"):
        assert (await server.trust.placed(spec(trust_level=level), FREE)).sandbox == "host"
    server.docker.available = False
    await server.sandboxes.offered.check(spec(sandbox="bubblewrap"))
    with pytest.raises(SandboxUnavailable, match="no sandbox is free"):
        await server.sandboxes.offered.check(spec(sandbox="docker"))


async def test_a_new_session_without_a_sandbox_is_refused_unless_it_names_a_fallback(
    server: TwoProviders,
):
    server.docker.available = False
    with pytest.raises(SandboxUnavailable, match="no sandbox is free"):
        await server.trust.placed(spec(), LIMITED)
    made = await server.trust.placed(spec(sandbox_fallback="bubblewrap"), LIMITED)
    assert (made.trust_level, made.sandbox, made.sandbox_fallback) == (
        *("sandboxed", "bubblewrap", "bubblewrap"),
    )
    for level in ("vault", "full"):
        made = await server.trust.placed(spec(sandbox_fallback=level), FREE)
        assert (made.trust_level, made.sandbox) == (level, "host")
    server.bubblewrap.available = False
    with pytest.raises(SandboxUnavailable):
        await server.trust.placed(spec(sandbox_fallback="bubblewrap"), LIMITED)


async def test_a_fallback_is_not_taken_where_the_sandbox_is_there(server: TwoProviders):
    made = await server.trust.placed(spec(sandbox_fallback="full"), LIMITED)
    assert (made.trust_level, made.sandbox, made.sandbox_fallback) == (
        *("sandboxed", "docker", "full"),
    )


def test_a_fallback_is_no_way_to_more_trust(server: TwoProviders):
    for level in ("vault", "full"):
        with pytest.raises(Forbidden, match="sandbox_fallback"):
            server.trust.check(key("sandboxed"), spec(sandbox_fallback=level))
    server.levels.remove("full")
    with pytest.raises(InvalidRequest, match="sandbox_fallback: this server does not offer"):
        server.trust.check(key(), spec(sandbox_fallback="full"))
    server.trust.check(key("sandboxed"), spec(sandbox_fallback="bubblewrap"))


def test_a_fallback_that_the_operator_does_not_give_is_refused(server: TwoProviders):
    del server.offered._providers["bubblewrap"]
    with pytest.raises(InvalidRequest, match="sandbox_fallback: 'bubblewrap' is not offered"):
        server.trust.check(key(), spec(sandbox_fallback="bubblewrap"))


async def test_limits_that_nobody_can_enforce_on_the_host_are_not_ignored(server: TwoProviders):
    for level in ("vault", "full"):
        with pytest.raises(InvalidRequest, match="cannot be enforced"):
            await server.trust.placed(spec(trust_level=level), LIMITED)


async def test_a_vault_with_the_servers_own_files_in_it_is_not_shown(server: TwoProviders):
    server.volumes._data = server.volumes._vault / "data"
    for fields in ({"trust_level": "vault"}, {"mount_scope": "workspace+vault"}):
        with pytest.raises(SandboxUnavailable, match="lies in the vault") as refused:
            await server.sandboxes.offered.check(spec(**fields))
        assert "ROOST_DATA" in (refused.value.hint or "")
    await server.sandboxes.offered.check(spec())


@asynccontextmanager
async def manor(data: Path) -> AsyncGenerator[tuple[Node, TwoProviders], None]:
    async with node(data) as roost:
        server = TwoProviders(OneEnvironment(), data / "vault", list(EVERY))
        scripted = roost.harnesses["scripted"]
        store = roost.store
        use_parts(
            roost,
            runner_parts(
                store,
                roost.notifier,
                {"in-sandbox": SandboxedHarness(scripted)},
                sandboxes=server.sandboxes,
            ),
        )
        yield roost, server


class OneEnvironment:
    """One environment, whose networking can be changed."""

    networking = "unrestricted"

    async def get(self, *_: Any) -> Record:
        body = {"config": {"networking": {"type": self.networking}}}
        return Record(
            id="env_1",
            tenant=TENANT,
            kind="environment",
            version=1,
            body=body,
            created_at=0,
            updated_at=0,
        )


async def empty_history() -> AsyncGenerator[Entry, None]:
    for entry in ():
        yield entry


async def begun(roost: Node, **fields: Any) -> Session:
    made = await roost.store.sessions.create(
        TENANT, mint("sesn"), spec(**fields), [message("Hello?")]
    )
    roost.notifier.notify(WORK)
    return made


async def test_a_host_session_works_in_the_vault_and_lives_in_a_home_of_its_own(tmp_path: Path):
    async with manor(tmp_path) as (roost, server):
        for level, home in (("vault", None), ("full", "/home/me")):
            session = await begun(roost, trust_level=level)
            await roost.until(session, "session.status_idle")
            plan = server.host.plans[-1]
            assert plan.home.path == tmp_path / "vault" / ".workspaces" / session.id
            assert plan.workspace.path == tmp_path / "vault"
            assert not plan.hidden
            assert plan.environ.get("HOME") == home
            bounds = server.sandboxes._planner.confinement(session)
            assert (bounds is None) == (level == "full")


async def test_a_mount_scope_shows_the_vault_without_what_sessions_have(tmp_path: Path):
    async with manor(tmp_path) as (roost, server):
        session = await begun(roost, mount_scope="workspace+vault")
        await roost.until(session, "session.status_idle")
        (plan,) = server.docker.plans
        assert Mount(tmp_path / "vault", "/vault", hidden=[".workspaces"]) in plan.mounts
        assert plan.workspace.path == plan.home.path
        assert plan.hidden == [".claude"]


@pytest.mark.parametrize("level", ["vault", "full"])
async def test_a_level_that_is_no_longer_offered_waits_and_goes_on_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: TrustLevel
):
    monkeypatch.setattr("roost.core.sandbox.available._LOOK_AGAIN", 0.05)
    async with manor(tmp_path) as (roost, server):
        server.levels.remove(level)
        session = await begun(roost, trust_level=level)
        seen = await roost.until(session, "session.status_rescheduled")
        (error,) = [entry.fields["error"] for entry in seen if entry.type == "session.error"]
        assert f"does not offer the trust level '{level}'" in error["message"]
        assert "ROOST_TRUST_LEVELS" in error["message"]
        await anyio.sleep(0.2)
        assert len(await roost.store.log.inputs(session.id)) == 1
        assert not server.docker.plans and not server.bubblewrap.plans and not server.host.plans
        server.levels.append(level)
        entries = await roost.until(session, "session.status_idle")
        assert types(entries).count("session.error") == 1
        assert len(texts(entries)) == 1
        assert not server.docker.plans and not server.bubblewrap.plans
        assert len(server.host.plans) == 1
        assert (await roost.store.sessions.find(session.id)).spec.trust_level == level


@pytest.mark.parametrize("lost", ["level", "kind", "vault"])
async def test_a_sandbox_that_is_opened_on_demand_is_waited_for_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
):
    monkeypatch.setattr("roost.core.sandbox.available._LOOK_AGAIN", 0.01)
    server = TwoProviders(OneEnvironment(), tmp_path / "vault", list(EVERY))
    fields: dict[str, Any] = {"trust_level": "full"}
    if lost == "level":
        server.levels.remove("full")
    elif lost == "kind":
        fields = {"sandbox": "elsewhere"}
    else:
        fields = {"mount_scope": "workspace+vault"}
        server.volumes._data = server.volumes._vault / "data"
    state = State(thread_id="sthr_1", agent_name="helper")
    times = {"created_at": 0, "updated_at": 0}
    session = Session(id="sesn_1", tenant=TENANT, spec=spec(**fields), state=state, **times)
    brief = Brief(session, empty_history, StartMode.FRESH)
    harness, lease = SandboxedHarness(None), Lease(session.id, "node", 1)
    reports = CollectedReports()
    opening = server.sandboxes.open(lease, brief, harness, reports, None)
    with anyio.fail_after(60):
        async with opening as ready, anyio.create_task_group() as tasks:
            assert ready.sandbox is not None
            tasks.start_soon(ready.sandbox.spawn, ["true"])
            while not reports.told:  # noqa: ASYNC110 - nobody notifies of it
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)  # it looks again
            tasks.cancel_scope.cancel()  # and is closed while it waits
    [said] = reports.told
    assert isinstance(said, Draft)
    assert b'"sandbox_unavailable"' in said.body
    assert not server.docker.plans and not server.bubblewrap.plans and not server.host.plans


async def test_an_environment_that_becomes_limited_stops_a_host_session_aloud(tmp_path: Path):
    async with manor(tmp_path) as (roost, server):
        server.catalog.networking = "limited"
        session = await begun(roost, trust_level="full")
        entries = await roost.until(session, "session.status_idle")
        (error,) = [entry.fields["error"] for entry in entries if entry.type == "session.error"]
        assert "cannot be enforced on the host" in error["message"]
        assert len(await roost.store.log.inputs(session.id)) == 1
