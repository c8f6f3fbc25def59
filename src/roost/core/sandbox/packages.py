"""Packages of environments: installed once on this node, before the first agent that has them starts.

Each build is a task of the node, so that it goes on when the session that asked for it is interrupted, and is
there for all of its tenant that wait for it. What another tenant builds, or is built with another network, is another
build: nobody waits in its queue, nor has its failure. Nothing of it is in a session's log but what is said to those who wait. A build that is
killed leaves nothing that counts: the session is claimed again, and asks for the same layer, which is built anew.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

from roost import disk
from roost.core.sandbox.belongings import SessionBelongings
from roost.core.sandbox.loopback import with_ports
from roost.core.sandbox.networking import networking_of
from roost.core.sandbox.planner import SandboxPlanner, SandboxSystem
from roost.core.sandbox.reports import OnLack
from roost.domain import packages as rules
from roost.domain.environment import goes_on_without_packages, image_of
from roost.domain.packages import MARK, InstallStep
from roost.domain.session import Session
from roost.errors import (
    FieldNotServed,
    PackagesFailed,
    RoostError,
    SandboxFailed,
    SandboxUnavailable,
)
from roost.ports.drafts import new_draft, trouble
from roost.ports.egress import Account, Egress, Grant, OpenGrant, RefusalReport
from roost.ports.packages import LayersKept, PackageProvider
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import ImageProvider, Plan, SandboxLimits, SandboxProvider, Volume

_log = logging.getLogger(__name__)
_LINES_TOLD: Final = 20
_LINE_LENGTH: Final = 400
_FAILURE_SECONDS: Final = 60.0
_COLLECT_SECONDS: Final = 3600.0
_AT_ONCE: Final = 2
_MOST_QUEUED: Final = 16


class PackagePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator gives to builds, and which layers are `kept`.

    `environ` is what package managers are told: mirrors, for example. None is built while fewer than `least_free` bytes
    are free where layers are kept.
    """

    seconds: float = 900.0
    environ: Mapping[str, str] = {}
    limits: SandboxLimits = SandboxLimits()
    kept: LayersKept = LayersKept()
    least_free: int = 0


class _Wanted(NamedTuple):
    """What a build is for: a layer, as one tenant can have it through one kind of network."""

    tenant: str
    networking: bytes
    layer: str


class _Build:
    """One layer that is being built; `steps` are what was begun so far. One at a time has a layer's `turn`."""

    def __init__(self, turn: anyio.Lock) -> None:
        self.turn = turn
        self.steps: list[InstallStep] = []
        self.failure: PackagesFailed | None = None
        self.ended: float | None = None
        self._changed = anyio.Event()

    def begin(self, step: InstallStep) -> None:
        """A manager begins to install."""
        self.steps.append(step)
        self._tell()

    def end(self, failure: PackagesFailed | None) -> None:
        """It is there, or failed."""
        self.failure = failure
        self.ended = anyio.current_time()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def followed(self) -> AsyncGenerator[InstallStep, None]:
        """Each step as it begins, until it has ended."""
        told = 0
        while True:
            changed = self._changed
            for step in self.steps[told:]:
                told += 1
                yield step
            if self.ended is not None:
                return
            if told == len(self.steps):
                await changed.wait()


class PackageLayers:
    """The layers of this node. `provider` is the one that sessions get."""

    def __init__(
        self,
        belongings: SessionBelongings,
        provider: SandboxProvider,
        planner: SandboxPlanner,
        egress: Egress,
        policy: PackagePolicy,
    ) -> None:
        self._belongings = belongings
        self._provider = provider
        self._planner = planner
        self._egress = egress
        self._policy = policy
        self._builds: dict[_Wanted, _Build] = {}
        self._tasks: TaskGroup | None = None
        self._turns = anyio.Semaphore(_AT_ONCE)
        self._tenants: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(1))

    async def run(self) -> None:
        """Build what is asked for, and remove what nobody uses, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            while True:
                await self._collect()
                await anyio.sleep(_COLLECT_SECONDS)

    async def _collect(self) -> int:
        """Remove what nobody uses; how many bytes all layers still take."""
        self._forget()
        if isinstance(self._provider, PackageProvider):
            try:
                return await self._provider.collect(self._policy.kept)
            except SandboxFailed as error:
                _log.warning("layers: %s", error.message, extra={"action": "collect"})
        return 0

    def _forget(self) -> None:
        """What failed so long ago that it may be tried again, or is there by now."""
        for wanted in [wanted for wanted, build in self._builds.items() if _is_over(build)]:
            del self._builds[wanted]

    @property
    def images(self) -> list[str]:
        """The operator's names of the images that environments may choose."""
        return sorted(_images_of(self._provider))

    async def check(self, environment: Mapping[str, Any]) -> None:
        """Refuse an environment whose packages this server cannot install.

        :raises FieldNotServed: naming the manager
        :raises SandboxUnavailable: nobody can say now
        """
        for manager, _ in _wanted(environment):
            lack = await self._lack(manager, image_of(environment))
            if lack is not None:
                raise FieldNotServed(
                    f"config.packages.{manager}: {lack}",
                    hint="Install it on the machine or in the image, leave these packages out, or let the agent install them.",
                )

    async def _lack(self, manager: str, image: str | None) -> str | None:
        if not isinstance(self._provider, PackageProvider):
            return f"packages are not installed in {self._provider.name} sandboxes"
        try:
            return await self._provider.lack([manager], image)
        except SandboxUnavailable:
            raise  # it may be there later
        except SandboxFailed as error:
            return error.message

    async def build_ahead(self, tenant: str, environment: Mapping[str, Any]) -> None:
        """Begin to build what the sessions of a tenant's environment will need. Never fails."""
        try:
            if _wanted(environment):
                await self._begun(tenant, environment)
        except RoostError as error:  # whoever needs it is told
            _log.warning("cannot build ahead: %s", error.message, extra={"action": "layer"})

    async def of(
        self,
        session: Session,
        provider: SandboxProvider,
        say: OnLack,
        waits: Callable[[], None] = lambda: None,
    ) -> SandboxSystem:
        """The system of a session, once its packages are there, or without them if it is to go on so.

        `waits` is called before they are waited for, and `say` is told what is being installed meanwhile.

        :raises PackagesFailed: they cannot be, and the session is not to go on without them
        :raises SandboxUnavailable: these sandboxes do not have its environment's image, or not now
        :raises SandboxFailed: nothing can be installed now
        """
        environment = await self._belongings.environment(session)
        image = _offered_image(environment, provider)
        if image is not None and isinstance(provider, ImageProvider):
            await provider.check_image(image)
        try:
            layer = await self._ready(session.tenant, environment, provider, say, waits)
        except PackagesFailed as failed:
            if not goes_on_without_packages(environment):
                raise
            text = f"{failed.message}\nThe agent works without the packages."
            await say(trouble(failed.code, text, "retrying"))
            layer = None
        return SandboxSystem(image, layer)

    async def named(self, session: Session, provider: SandboxProvider) -> SandboxSystem:
        """The system that a session is to have, whether or not it is there. :raises SandboxFailed:"""
        environment = await self._belongings.environment(session)
        image = _offered_image(environment, provider)
        if not _wanted(environment) or not isinstance(provider, PackageProvider):
            return SandboxSystem(image)
        layer, _ = await provider.layer_of(environment["config"]["packages"], image)
        return SandboxSystem(image, layer)

    async def _ready(
        self,
        tenant: str,
        environment: Mapping[str, Any],
        provider: SandboxProvider,
        say: OnLack,
        waits: Callable[[], None],
    ) -> str | None:
        """The layer that a session of such an environment has; None if it needs none.

        Waits until it is there, as `of` does.

        :raises PackagesFailed: they cannot be installed :raises SandboxFailed: nothing can be, now
        """
        if not _wanted(environment):
            return None
        if provider is not self._provider:
            raise PackagesFailed(f"packages are not installed in {provider.name} sandboxes")
        layer, build = await self._begun(tenant, environment)
        if build is not None and build.ended is None:
            waits()
            began = anyio.current_time()
            async for manager, packages in build.followed():
                named = {"manager": manager, "packages": list(packages)}
                await say(new_draft("roost.packages_installing", **named))
            if build.failure is None:
                seconds = round(anyio.current_time() - began, 1)
                await say(new_draft("roost.packages_installed", waited_seconds=seconds))
        if build is not None and build.failure is not None:
            raise build.failure
        return layer

    async def _begun(
        self, tenant: str, environment: Mapping[str, Any]
    ) -> tuple[str, _Build | None]:
        """The layer's name, and its build unless it is there.

        :raises SandboxUnavailable: its tenant has too many others built, for now
        """
        if not isinstance(self._provider, PackageProvider) or self._tasks is None:
            raise PackagesFailed(f"packages are not installed in {self._provider.name} sandboxes")
        config = environment["config"]
        layer, is_there = await self._provider.layer_of(config["packages"], image_of(environment))
        wanted = _Wanted(tenant, msgspec.json.encode(networking_of(config)), layer)
        if is_there:
            self._builds.pop(wanted, None)
            return layer, None
        self._forget()
        build = self._builds.get(wanted)
        if build is None:
            self._check_queue(tenant)
            turns = (each.turn for known, each in self._builds.items() if known.layer == layer)
            build = self._builds[wanted] = _Build(next(turns, None) or anyio.Lock())
            self._tasks.start_soon(self._built, self._provider, layer, tenant, environment, build)
        return layer, build

    def _check_queue(self, tenant: str) -> None:
        waiting = [each.tenant for each, build in self._builds.items() if build.ended is None]
        if waiting.count(tenant) >= _MOST_QUEUED:
            raise SandboxUnavailable(
                f"{_MOST_QUEUED} other sets of packages are being installed for this tenant",
                hint="The session waits until one of them is there.",
            )

    async def _built(
        self,
        provider: PackageProvider,
        layer: str,
        tenant: str,
        environment: Mapping[str, Any],
        build: _Build,
    ) -> None:
        failure: PackagesFailed | None = PackagesFailed("the server is stopping")
        wanted = _wanted(environment)
        try:
            # One at a time for each tenant: however many it asks for, others have a turn. Whoever waits for the
            # same layer has none of the node's turns meanwhile.
            async with self._tenants[tenant], build.turn, self._turns:
                await self._check_disk(provider)
                await self._check_kept()
                with anyio.fail_after(self._policy.seconds):
                    await self._install(provider, layer, environment, build)
            failure = None
        except TimeoutError:
            at = build.steps[-1] if build.steps else wanted[0]
            seconds = round(self._policy.seconds)
            failure = _failed(at, f"it took longer than {seconds} seconds")
        except PackagesFailed as error:
            failure = error
        except RoostError as error:
            failure = PackagesFailed(f"the packages cannot be installed: {error.message}")
        except Exception as error:  # noqa: BLE001 - whoever waits is told, and the node goes on
            _log.exception("a layer cannot be built", extra={"action": "layer"})
            failure = PackagesFailed(f"the packages cannot be installed: {error}")
        finally:
            if failure is not None:
                _log.warning("packages: %s", failure.message, extra={"action": "layer"})
            build.end(failure)
        if failure is None:
            await self._collect()  # there may be more than are kept

    async def _check_disk(self, provider: PackageProvider) -> None:
        """:raises PackagesFailed: one is nearly full"""
        least = self._policy.least_free
        for directory in await provider.takes_room_in():
            if await anyio.to_thread.run_sync(disk.free, directory) < least:
                raise PackagesFailed(
                    f"there are fewer than {least} bytes free on the server's disk"
                )

    async def _check_kept(self) -> None:
        """:raises PackagesFailed: layers that are in use take all that layers may"""
        most = self._policy.kept.bytes
        if most and (taken := await self._collect()) >= most:
            raise PackagesFailed(
                f"the installed packages that are in use take {taken} bytes, and all may take {most}",
                hint="Archive sessions that are not needed, or raise ROOST_PACKAGE_TOTAL_DISK.",
            )

    async def _install(
        self,
        provider: PackageProvider,
        layer: str,
        environment: Mapping[str, Any],
        build: _Build,
    ) -> None:
        config, wanted = environment["config"], _wanted(environment)
        refused: list[RefusalReport] = []
        grant = Grant(
            session_id=f"layer-{layer}",
            generation=1,
            account=_nothing,
            refused=partial(_noted, refused),
            api="",
            networking=networking_of(config),
        )
        async with self._egress.open(grant) as granted:
            plan = partial(self._plan, granted)
            image = image_of(environment)
            async with provider.building(config["packages"], plan, image) as sandbox:
                if sandbox is None:
                    return
                said = await self._run(with_ports(sandbox, granted.endpoints), wanted, build)
                if said is not None:
                    told = [f"the sandbox may not reach {each.host}" for each in refused[:3]]
                    step = build.steps[-1] if build.steps else wanted[0]
                    raise _failed(step, "\n".join([*said, *told]))

    def _plan(self, granted: OpenGrant, layer: str, volume: Volume) -> Plan:
        return self._planner.build(
            layer, volume, granted, self._policy.limits, self._policy.environ
        )

    async def _run(
        self, sandbox: Sandbox, wanted: list[InstallStep], build: _Build
    ) -> list[str] | None:
        """The last lines that were said, if it fails."""
        process = await sandbox.spawn(["/bin/sh", "-c", rules.script(wanted)])
        lines: deque[str] = deque(maxlen=_LINES_TOLD)
        left = rules.steps(wanted)
        rest = b""
        while data := await process.receive():
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                self._heard(line.decode(errors="replace"), lines, left, build)
            rest = rest[:_LINE_LENGTH]
        lines.append(rest.decode(errors="replace"))
        return None if await process.wait() == 0 else [line for line in lines if line.strip()]

    def _heard(self, line: str, lines: deque[str], left: list[InstallStep], build: _Build) -> None:
        """Packages say what they like; but there are no more steps than the script has `left`."""
        marks = [rules.mark_of(step) for step in left] if line.startswith(MARK) else []
        if line in marks:
            lines.clear()
            build.begin(left[marks.index(line)])
            del left[: marks.index(line) + 1]
        else:
            lines.append(line[:_LINE_LENGTH])


def _wanted(environment: Mapping[str, Any]) -> list[InstallStep]:
    return rules.installations((environment.get("config") or {}).get("packages") or {})


def _images_of(provider: SandboxProvider) -> Collection[str]:
    return provider.images if isinstance(provider, ImageProvider) else ()


def _offered_image(environment: Mapping[str, Any], provider: SandboxProvider) -> str | None:
    """The image that an environment names. :raises SandboxUnavailable: there is none of that name"""
    image = image_of(environment)
    if image is None or image in _images_of(provider):
        return image
    raise SandboxUnavailable(
        f"{provider.name} sandboxes have no image {image!r}, which the environment names",
        hint="The session waits, and goes on once ROOST_DOCKER_IMAGES has it again.",
    )


def _failed(at: InstallStep, said: str) -> PackagesFailed:
    named = ", ".join(rules.culprits(at, said))
    return PackagesFailed(f"{at.manager} could not install {named}:\n{said}")


def _is_over(build: _Build) -> bool:
    """Whether it may be tried again: many sessions that wait for one that fails must not build it in turn."""
    ended = build.ended
    if ended is None:
        return False
    return build.failure is None or anyio.current_time() > ended + _FAILURE_SECONDS


async def _nothing(account: Account) -> None:
    """A build has no model to ask."""


async def _noted(refused: list[RefusalReport], report: RefusalReport) -> None:
    refused.append(report)
