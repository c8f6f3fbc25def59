"""Packages of environments are built once on a node, whoever waits for them, and however it ends."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.core.node import TENANT, message, node, texts, use_parts
from tests.core.test_planner import session
from tests.core.test_planner import session as planned_session
from tests.core.test_prestart import FixedNetworking
from tests.core.test_sandboxes import (
    FakeEgress,
    FakeProvider,
    FakeSandbox,
    SandboxedHarness,
    sandboxes,
)

from roost.core.concurrency import alongside
from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.packages import PackageLayers, PackagePolicy
from roost.core.sandbox.planner import SandboxPlanner, SandboxPolicy, SandboxSystem
from roost.domain import packages
from roost.domain.events import Draft
from roost.domain.session import Session
from roost.errors import FieldNotServed, PackagesFailed, SandboxFailed, SandboxUnavailable
from roost.ports.packages import LayersKept, PlanBuild
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.volumes import VaultVolumes
from roost.testing.null_parts import runner_parts

CONFIG = {
    "type": "cloud",
    "networking": {"type": "unrestricted"},
    "packages": packages.checked({"apt": ["jq"], "pip": ["pandas"]}, packages.NONE),
}
ENVIRONMENT = {"config": CONFIG, "metadata": {}}
FAILS = f"{packages.MARK}pip pandas\nERROR: pandas is no more\n"


def _nothing() -> None:
    pass


class Installing:
    """A command that says these words, waits until it may end, and ends with this code."""

    def __init__(self, said: str, code: int, may_end: anyio.Event) -> None:
        self._said = [said.encode()]
        self._code = code
        self._may_end = may_end

    async def receive(self, limit: int = 65536) -> bytes:
        if self._said:
            return self._said.pop()
        await self._may_end.wait()
        return b""

    async def wait(self) -> int:
        return self._code


class BuildSandbox(FakeSandbox):
    def __init__(self, process: Installing) -> None:
        self._process = process

    async def spawn(self, argv: Sequence[str], **options: Any) -> Any:
        return self._process


class BuildingProvider(FakeProvider):
    """Its builds say `said` and end with `code`, once they `may_end`."""

    def __init__(self, said: str = "", code: int = 0) -> None:
        super().__init__()
        self._said = said
        self._code = code
        self.may_end = anyio.Event()
        self.builds: list[Plan] = []
        self.collected = 0
        self.taken = 0
        self.there = False
        self.lacking: Exception | None = None

    async def lack(self, managers: Collection[str], image: str | None = None) -> str | None:
        if self.lacking is not None:
            raise self.lacking
        return "no apt here" if "apt" in managers else None

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        return f"layer-of-{image}" if image else "layer", self.there

    @asynccontextmanager
    async def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AsyncGenerator[BuildSandbox, None]:
        self.builds.append(plan("layer", LocalVolume(Path("/build"))))
        yield BuildSandbox(Installing(self._said, self._code, self.may_end))
        self.there = True

    async def takes_room_in(self) -> list[Path]:
        return [Path("/"), Path("/build")]

    async def collect(self, kept: LayersKept) -> int:
        self.collected += 1
        return self.taken


class OneEnvironment(SessionBelongings):
    """What every session's environment is."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    async def environment(self, session: Session) -> Mapping[str, Any]:
        return self._body


@asynccontextmanager
async def layers_of(
    provider: FakeProvider, data: Path, environment: OneEnvironment | None = None, **policy: Any
) -> AsyncGenerator[PackageLayers, None]:
    forwarding = SandboxPolicy(forwarder=Path("/forward"), person=Path("/home/me"))
    planner = SandboxPlanner(VaultVolumes(data / "vault", data), forwarding, Budgets(), print)
    layers = PackageLayers(environment, provider, planner, FakeEgress(), PackagePolicy(**policy))  # type: ignore[arg-type]
    async with alongside(layers.run):
        await anyio.wait_all_tasks_blocked()
        yield layers


async def test_all_that_wait_are_told_and_it_is_built_once(tmp_path: Path):
    said: list[list[Draft]] = [[], []]
    provider = BuildingProvider(f"{packages.MARK}apt jq\nget\n{packages.MARK}pip pandas\n")
    async with layers_of(provider, tmp_path, environ={"A": "b"}) as layers:

        async def wait(told: list[Draft]) -> None:
            async def say(draft: Draft) -> None:
                told.append(draft)

            assert await layers._ready(TENANT, ENVIRONMENT, provider, say, _nothing) == "layer"  # type: ignore[arg-type]

        async with anyio.create_task_group() as tasks:
            for told in said:
                tasks.start_soon(wait, told)
            await anyio.wait_all_tasks_blocked()
            provider.may_end.set()
        third: list[Draft] = []
        await wait(third)
    [plan] = provider.builds
    assert (plan.session_id, dict(plan.environ)) == ("layer-layer", {"DOOR": "1", "A": "b"})
    for told in said:
        assert [draft.type for draft in told] == [
            "roost.packages_installing",
            "roost.packages_installing",
            "roost.packages_installed",
        ]
        named = [msgspec.json.decode(draft.body).get("manager") for draft in told]
        assert named == ["apt", "pip", None]
    assert third == []


@pytest.mark.parametrize(
    ("policy", "ends", "message"),
    [
        ({}, True, "pip could not install pandas:\nERROR: pandas is no more"),
        ({"seconds": 0.1}, False, "(apt|pip) could not install (jq|pandas):\nit took longer than"),
    ],
    ids=["fails", "hangs"],
)
async def test_a_failure_is_told_to_all_and_not_tried_again_at_once(
    tmp_path: Path, policy: dict[str, float], ends: bool, message: str
):
    async def say(draft: Draft) -> None:
        pass

    provider = BuildingProvider(FAILS, code=1)
    if ends:
        provider.may_end.set()
    async with layers_of(provider, tmp_path, **policy) as layers:
        for _ in range(2):
            with pytest.raises(PackagesFailed) as failure:
                await layers._ready(TENANT, ENVIRONMENT, provider, say, _nothing)  # type: ignore[arg-type]
            assert re.match(message, failure.value.message)
    assert len(provider.builds) == 1
    assert not provider.there


async def test_whoever_waits_for_a_build_that_has_said_nothing_is_told_to_let_others_go_first(
    tmp_path: Path,
):
    provider, waits = BuildingProvider(), anyio.Event()
    async with layers_of(provider, tmp_path) as layers, anyio.create_task_group() as tasks:
        tasks.start_soon(layers._ready, TENANT, ENVIRONMENT, provider, None, waits.set)
        with anyio.fail_after(60):
            await waits.wait()
        tasks.cancel_scope.cancel()


async def test_what_cannot_be_installed_is_refused_by_name(tmp_path: Path):
    other = FakeProvider()
    async with layers_of(BuildingProvider(), tmp_path) as layers:
        with pytest.raises(FieldNotServed, match=r"^config\.packages\.apt: no apt here$"):
            await layers.check(ENVIRONMENT)
        with pytest.raises(PackagesFailed, match="not installed in fake sandboxes"):
            await layers._ready(TENANT, ENVIRONMENT, other, None, _nothing)  # type: ignore[arg-type]
        assert (
            await layers._ready(TENANT, {"config": {"type": "self_hosted"}}, other, None, _nothing)
            is None
        )  # type: ignore[arg-type]
    provider = BuildingProvider()
    for error, refusal in (
        (SandboxUnavailable, SandboxUnavailable),
        (SandboxFailed, FieldNotServed),
    ):
        provider.lacking = error("not now")
        async with layers_of(provider, tmp_path) as layers:
            with pytest.raises(refusal, match="not now"):
                await layers.check(ENVIRONMENT)
    async with layers_of(other, tmp_path) as none:
        with pytest.raises(FieldNotServed, match="apt: packages are not installed in fake"):
            await none.check(ENVIRONMENT)
        await none.build_ahead(TENANT, ENVIRONMENT)


@pytest.mark.parametrize("metadata", [{}, {"roost.packages_failed": "continue"}])
async def test_a_session_goes_on_without_its_packages_only_if_its_environment_says_so(
    tmp_path: Path, metadata: dict[str, str]
):
    said: list[Draft] = []

    async def say(draft: Draft) -> None:
        said.append(draft)

    provider = BuildingProvider(FAILS, code=1)
    provider.may_end.set()
    environment = OneEnvironment({"config": CONFIG, "metadata": metadata})
    async with layers_of(provider, tmp_path, environment) as layers:
        if metadata:
            assert await layers.of(session(), provider, say) == SandboxSystem()  # type: ignore[arg-type]
        else:
            with pytest.raises(PackagesFailed):
                await layers.of(session(), provider, say)  # type: ignore[arg-type]
    errors = [
        msgspec.json.decode(each.body)["error"] for each in said if each.type == "session.error"
    ]
    assert [each["message"].splitlines()[-1] for each in errors] == [
        "The agent works without the packages."
    ] * len(metadata)


class OfferingImages(BuildingProvider):
    images = ("node", "rust")
    has_image = True

    async def check_image(self, name: str) -> None:
        if not self.has_image:
            raise SandboxUnavailable(f"the engine has no image {name!r}", hint="Pull it.")

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[FakeSandbox, None]:
        await self.check_image(str(plan.image))
        async with super().open(plan) as sandbox:
            yield sandbox


async def test_a_session_has_its_environment_s_image_with_the_packages_or_waits(tmp_path: Path):
    provider, told = OfferingImages(), anyio.Event()
    provider.may_end.set()
    session = planned_session()

    async def say(draft: Draft) -> None:
        told.set()

    async with layers_of(provider, tmp_path) as layers:
        assert layers.images == ["node", "rust"]
        layers._belongings = OneEnvironment({**ENVIRONMENT, "metadata": {"roost.image": "rust"}})
        named = await layers.named(session, provider)  # type: ignore[arg-type]
        assert named == SandboxSystem("rust", "layer-of-rust")
        assert await layers.of(session, provider, say) == named  # type: ignore[arg-type]
        assert told.is_set()
        for unable in (BuildingProvider(), FakeProvider()):
            with pytest.raises(SandboxUnavailable, match="fake sandboxes have no image 'rust'"):
                await layers.of(session, unable, say)  # type: ignore[arg-type]
        layers._belongings = OneEnvironment({"metadata": {"roost.image": "node"}})
        assert await layers.of(session, provider, say) == SandboxSystem("node")  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["of the engine's", "of the operator's"])
async def test_a_session_goes_on_by_itself_once_its_environment_s_image_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
):
    monkeypatch.setattr("roost.core.sandbox.available._LOOK_AGAIN", 0.05)
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.01,))
    environment, provider = OneEnvironment({"metadata": {"roost.image": "rust"}}), OfferingImages()
    if missing == "of the engine's":
        provider.has_image = False
    else:
        provider.images = ("node",)
    async with node(tmp_path) as roost, layers_of(provider, tmp_path, environment) as layers:
        reach = FixedNetworking(roost.store.catalog)
        opens = sandboxes(tmp_path / "vault", provider, FakeEgress(), roost, belongings=reach)
        opens.packages = layers
        harnesses = {"in-sandbox": SandboxedHarness(roost.harnesses["scripted"])}
        use_parts(roost, runner_parts(roost.store, roost.notifier, harnesses, sandboxes=opens))
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        await roost.until(session, "session.status_rescheduled")
        await anyio.sleep(0.2)  # it looks again, and does not give up
        provider.has_image, provider.images = True, ("node", "rust")
        entries = await roost.until(session, "session.status_idle")
    (error,) = [entry.fields["error"] for entry in entries if entry.type == "session.error"]
    assert re.search(r"no image 'rust'.*(Pull it|The session waits)", error["message"])
    assert len(texts(entries)) == 1
    assert [plan.image for plan in provider.plans] == ["rust"]


def of_pip(package: str) -> dict[str, Any]:
    wanted = packages.checked({"pip": [package]}, packages.NONE)
    return {"config": {**CONFIG, "packages": wanted}, "metadata": {}}


class PerPackage(BuildingProvider):
    """Each set of packages is a layer of its own, by the first one's name."""

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        return packages["pip"][0], False

    @asynccontextmanager
    async def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AsyncGenerator[BuildSandbox, None]:
        self.builds.append(plan(packages["pip"][0], LocalVolume(Path("/build"))))
        yield BuildSandbox(Installing("begun\n", 0, self.may_end))


async def test_a_tenant_that_asks_for_many_leaves_a_turn_to_others(tmp_path: Path):
    provider = PerPackage()
    async with layers_of(provider, tmp_path) as layers:
        for number in range(3):
            await layers.build_ahead("many", of_pip(f"a{number}"))
        await layers.build_ahead("other", of_pip("b"))
        await until(lambda: len(provider.builds) == 2)
        assert {plan.session_id for plan in provider.builds} == {"layer-a0", "layer-b"}
        provider.may_end.set()
        await until(lambda: (provider.collected, layers._builds) == (1 + 4, {}))
        assert len(provider.builds) == 4


class PerNetwork(PerPackage):
    """Its layers stay. Packages called `long…` take until they may end; under limited networking all fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: set[str] = set()
        self.egress = FakeEgress()

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        return packages["pip"][0], packages["pip"][0] in self.layers

    @asynccontextmanager
    async def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AsyncGenerator[BuildSandbox | None, None]:
        name = packages["pip"][0]
        if name in self.layers:
            yield None
            return
        self.builds.append(plan(name, LocalVolume(Path("/build"))))
        may_end = self.may_end
        if not name.startswith("long"):
            may_end = anyio.Event()
            may_end.set()
        code = int(self.egress.grants[-1].networking.kind == "limited")
        yield BuildSandbox(Installing("begun\n", code, may_end))
        self.layers.add(name)


def limited(environment: dict[str, Any]) -> dict[str, Any]:
    networking = {"type": "limited", "allow_package_managers": True}
    return {**environment, "config": {**environment["config"], "networking": networking}}


async def test_who_waits_or_fails_keeps_no_other_tenant_and_no_other_network_from_a_layer(
    tmp_path: Path,
):
    async def say(draft: Draft) -> None:
        pass

    provider, free = PerNetwork(), of_pip("same")
    async with layers_of(provider, tmp_path) as layers:
        layers._egress = provider.egress
        await layers.build_ahead("one", of_pip("long"))
        await until(lambda: len(provider.builds) == 1)
        await layers.build_ahead("one", free)  # behind the other one, in the queue of its tenant
        with anyio.fail_after(60):
            assert await layers._ready("two", free, provider, say, _nothing) == "same"  # type: ignore[arg-type]
        provider.may_end.set()
        await until(lambda: layers._builds == {})
        provider.layers.clear()
        for tenant in ("one", "two"):
            with pytest.raises(PackagesFailed, match="pip could not install same"):
                await layers._ready(tenant, limited(free), provider, say, _nothing)  # type: ignore[arg-type]
        assert await layers._ready("one", free, provider, say, _nothing) == "same"  # type: ignore[arg-type]


async def test_two_tenants_that_want_one_layer_have_one_build_and_one_of_the_node_s_turns(
    tmp_path: Path,
):
    provider = PerNetwork()
    async with layers_of(provider, tmp_path) as layers:
        layers._egress = provider.egress
        for tenant, package in (("one", "long-a"), ("two", "long-a"), ("three", "long-b")):
            await layers.build_ahead(tenant, of_pip(package))
        await until(lambda: len(provider.builds) == 2)
        provider.may_end.set()
        await until(lambda: layers._builds == {})
    assert sorted(plan.session_id for plan in provider.builds) == ["layer-long-a", "layer-long-b"]


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():  # noqa: ASYNC110 - nobody notifies of it
            await anyio.sleep(0.01)


async def test_nothing_is_built_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    provider = BuildingProvider()
    monkeypatch.setattr(
        "roost.core.sandbox.packages.disk.free", {Path("/"): 9, Path("/build"): 4}.get
    )
    async with layers_of(provider, tmp_path, least_free=5) as layers:
        with pytest.raises(PackagesFailed, match="fewer than 5 bytes free"):
            await layers._ready(TENANT, ENVIRONMENT, provider, None, _nothing)  # type: ignore[arg-type]
    assert provider.builds == []


async def test_nothing_is_built_while_layers_in_use_take_all_that_layers_may(tmp_path: Path):
    provider, kept = BuildingProvider(), LayersKept(bytes=100)
    provider.may_end.set()
    provider.taken = 100
    async with layers_of(provider, tmp_path, kept=kept) as layers:
        with pytest.raises(
            PackagesFailed, match=r"in use take 100 bytes, and all may take 100"
        ) as no:
            await layers._ready(TENANT, ENVIRONMENT, provider, None, _nothing)  # type: ignore[arg-type]
        assert "ROOST_PACKAGE_TOTAL_DISK" in str(no.value.hint)
        assert provider.builds == []
        provider.taken = 99
        await layers.build_ahead("another", ENVIRONMENT)
        await until(lambda: provider.there)


async def test_whoever_asks_for_too_many_layers_at_once_waits_and_others_do_not(tmp_path: Path):
    provider = PerPackage()
    async with layers_of(provider, tmp_path) as layers:
        for number in range(20):
            await layers.build_ahead("many", of_pip(f"a{number}"))
        assert len(layers._builds) == 16
        for known in ("a0", "a15"):
            assert await layers._begun("many", of_pip(known))
        with pytest.raises(
            SandboxUnavailable, match=r"^16 other sets of packages are being installed"
        ):
            await layers._begun("many", of_pip("one-more"))
        assert await layers._begun("other", of_pip("b"))
        provider.may_end.set()
        await until(lambda: layers._builds == {})
        assert await layers._begun("many", of_pip("one-more"))


async def test_a_package_cannot_pretend_to_be_more_steps_than_there_are(tmp_path: Path):
    said: list[str] = []

    async def say(draft: Draft) -> None:
        said.append(msgspec.json.decode(draft.body).get("manager", ""))

    flood = f"{packages.MARK}apt jq\n{packages.MARK}npm x\n{packages.MARK}pip pandas\n" * 9
    provider = BuildingProvider(flood + "x" * 9000 + "!", code=1)
    provider.may_end.set()
    async with layers_of(provider, tmp_path) as layers:
        with pytest.raises(PackagesFailed) as failed:
            await layers._ready(TENANT, ENVIRONMENT, provider, say, _nothing)  # type: ignore[arg-type]
    assert said == ["apt", "pip"]
    assert failed.value.message.splitlines()[-1] == "x" * 400
