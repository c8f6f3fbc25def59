"""Opens sandboxes that are containers."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.packages import LayersKept, PlanBuild
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import SYSTEM_CERTIFICATES, LocalVolume, Plan
from roost.sandboxes import sandbox_names
from roost.sandboxes.bubblewrap.disk import DiskWatch
from roost.sandboxes.bubblewrap.identity import SandboxIdentity, Uids, settle
from roost.sandboxes.bubblewrap.provider import DEFAULT_UIDS
from roost.sandboxes.bubblewrap.recipe import check_targets
from roost.sandboxes.docker import recipe
from roost.sandboxes.docker.engine import NOT_FOUND, PLACE, Engine
from roost.sandboxes.docker.layers import CLEAN, LOOK, ImageLayers, image_of, lack_of, name_of
from roost.sandboxes.docker.profile import profile
from roost.sandboxes.docker.sandbox import DockerSandbox, RunningContainer
from roost.sandboxes.docker.wire import EngineRefused, EngineStream
from roost.sandboxes.hidden import make_mount_points
from roost.sandboxes.open_sandboxes import OpenSandboxes
from roost.sandboxes.state import default_state, write_whole

_SECONDS_TO_START: Final = 120
_IMAGE_HINT: Final = "Build it with `roost image build`, or set ROOST_DOCKER_IMAGE to one it has."
_OTHER_HINT: Final = "Pull it into the engine, or set ROOST_DOCKER_IMAGES to one it has."
_CERTIFICATES_KEPT: Final = 8  # about 200 KB each
_MISSING: Final = "missing:"
_NOT_COUNTED: Final = "the engine keeps containers where their disk usage cannot be counted"


class DockerProvider:
    """`ports.sandbox.SandboxProvider`.

    :param socket: where the engine listens
    :param image: what containers are made of; needs `sh`, `cat` and whatever agents are to find
    :param data: a directory of the server's own, which lasts: what is known of layers of packages is there
    :param images: others, by the names that environments have for them
    :param runtime: another one than the engine's own, such as `runsc`, which the engine must know
    :param uids: what a root server gives to sandboxes; must belong to nobody else on the machine
    :param state: a directory of the server's own that the engine can see; by default below `/run`
    """

    def __init__(
        self,
        *,
        socket: Path,
        image: str,
        data: Path,
        images: Mapping[str, str] | None = None,
        runtime: str | None = None,
        uids: range = DEFAULT_UIDS,
        state: Path | None = None,
    ) -> None:
        self._engine = Engine(socket)
        self._image = image
        self._images = images or {}
        self._runtime = runtime
        self._uids = Uids(uids)
        self._state = state
        self._data = data
        self._open: OpenSandboxes[DockerSandbox] = OpenSandboxes()
        self._checked = False
        self._writable = True
        self._certificates: dict[str, bytes | None] = {}  # by images' ids, used last at the end
        self._managers: dict[str, list[str]] = {}  # of images that operators name, by their ids

    @property
    def name(self) -> str:
        return "docker"

    @property
    def isolates(self) -> bool:
        return True

    @property
    def images(self) -> Collection[str]:
        return self._images.keys()

    async def check(self) -> None:
        await self._ask_engine()
        if not self._checked:
            await self._try_one(self._image)
            self._checked = True

    async def _ask_engine(self) -> str:
        """Its version, if it can give a sandbox."""
        try:
            version = await self._engine.version()
            if not await self._engine.has_image(self._image):
                raise SandboxUnavailable(
                    f"the engine has no image {self._image!r}", hint=_IMAGE_HINT
                )
            await self._check_runtime()
            if not self._checked:
                await self._sweep_unstarted()
        except EngineRefused as refused:
            raise SandboxUnavailable(f"the engine does not work: {refused}") from refused
        return version

    async def _check_runtime(self) -> None:
        """An engine may fall back to another one without a word. We do not: it was chosen as a wall."""
        if self._runtime is None or self._runtime in (known := await self._engine.runtimes()):
            return
        hint = "Add it to the engine's settings, or set ROOST_DOCKER_RUNTIME to one that it has."
        if await self._engine.is_podman():
            hint = "Podman's service has one: start it with --runtime, or leave ROOST_DOCKER_RUNTIME out."
        raise SandboxUnavailable(
            f"the engine has no runtime {self._runtime!r}, but {', '.join(known)}", hint=hint
        )

    async def _try_one(self, image: str, script: str = "true") -> str:
        """What a shell's script says. An engine that answers may still not see our files, or not run the image."""
        with tempfile.TemporaryDirectory(prefix="roost-check-") as folder:
            home = Path(folder)
            session = f"check-{secrets.token_hex(4)}"
            plan = Plan(
                session_id=session,
                generation=1,
                home=LocalVolume(home),
                workspace=LocalVolume(home),
            )
            try:
                async with self._opened(plan, image) as sandbox:
                    process = await sandbox.spawn(["/bin/sh", "-c", script])
                    said = b""
                    while data := await process.receive():
                        said += data
                    code = await process.wait()
            except SandboxFailed as error:
                raise SandboxUnavailable(
                    f"a container does not work here: {error.message}", hint=error.hint
                ) from error
        if code != 0:
            raise SandboxUnavailable(f"a container could not run anything (exit code {code})")
        return said.decode(errors="replace")

    async def limits_report(self) -> dict[str, str]:
        engine = f"version {await self._ask_engine()}"
        together = "all commands together, by the engine"
        return {
            "engine": engine,
            "image": self._image,
            **await self._images_report(),
            "runtime": self._runtime or "the engine's own",
            "memory": together,
            "processes": together,
            "cpus": together,
            "open files": "of each process",
            "disk": "a file's size by rlimit; all together looked at every 10 s or when it fills",
            "root": "writable" if self._writable else f"read-only: {_NOT_COUNTED}",
            "uid": "one per session" if os.geteuid() == 0 else "the server's own, for all sessions",
        }

    async def _images_report(self) -> dict[str, str]:
        """Which of the others the engine has."""
        with _said_by_engine():
            return {
                f"image {name}": image
                if await self._engine.has_image(image)
                else f"{_MISSING} {image}"
                for name, image in self._images.items()
            }

    async def _sweep_unstarted(self) -> None:
        """What a server made and did not live to start. All that was started ends by itself."""
        for found in await self._engine.sandboxes():
            if found["State"] != "running" and time.time() - found["Created"] > _SECONDS_TO_START:
                await self._engine.remove(found["Id"])

    async def check_image(self, name: str) -> None:
        await self._base(name)

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        image = await self._system(plan)
        async with self._opened(plan, image) as sandbox:
            yield sandbox

    async def lack(self, managers: Collection[str], image: str | None = None) -> str | None:
        await self.check()
        if not self._writable:
            return f"the root of a container is read-only here: {_NOT_COUNTED}"
        base, now = await self._base(image)
        if now not in self._managers:
            self._managers[now] = (await self._try_one(base, LOOK)).split()
        return lack_of(managers, self._managers[now], base)

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        _, now = await self._base(image)
        layer = name_of(now, packages)
        with _said_by_engine():
            return layer, await self._layers.use(layer)

    @asynccontextmanager
    async def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AsyncGenerator[Sandbox | None, None]:
        _, now = await self._base(image)
        layer = name_of(now, packages)
        with _said_by_engine():
            async with self._layers.begun(layer) as home:
                if home is None:
                    yield None
                    return
                wanted = plan(layer, LocalVolume(home))
                async with self._opened(wanted, now, recipe.BUILDER) as sandbox:
                    yield sandbox
                    await (await sandbox.spawn(["/bin/sh", "-c", CLEAN])).wait()
                    await self._layers.keep(layer, sandbox.container, now)

    async def takes_room_in(self) -> list[Path]:
        with _said_by_engine():
            root = await self._engine.kept_in()
        return [self._data, *([root] if root is not None and await _is_there(root) else [])]

    async def collect(self, kept: LayersKept) -> int:
        with _said_by_engine():
            return await self._layers.collect(kept)

    async def _system(self, plan: Plan) -> str:
        """What a container is made of: a layer of packages, the environment's image, or the usual one."""
        if plan.layer is None:
            return (await self._base(plan.image))[0]
        with _said_by_engine():
            if not await self._layers.use(plan.layer):
                raise SandboxUnavailable(f"cannot make a container: the layer {plan.layer} is gone")
        return image_of(plan.layer)

    async def _base(self, name: str | None) -> tuple[str, str]:
        """The image that the operator has given a name, and its id."""
        if name is None:
            image, hint = self._image, _IMAGE_HINT
        elif name in self._images:
            image, hint = self._images[name], _OTHER_HINT
        else:
            raise SandboxUnavailable(f"no image is called {name!r} here", hint=_OTHER_HINT)
        try:
            return image, await self._engine.image_id(image)
        except EngineRefused as refused:
            if refused.status != NOT_FOUND:
                raise SandboxUnavailable(f"the engine does not work: {refused}") from refused
            raise SandboxUnavailable(f"the engine has no image {image!r}", hint=hint) from refused

    @asynccontextmanager
    async def _opened(
        self, plan: Plan, image: str, who: SandboxIdentity | None = None
    ) -> AsyncGenerator[DockerSandbox, None]:
        check_targets(plan.shown)
        try:
            async with self._open.slot(plan) as slot, anyio.create_task_group() as tasks:
                with ExitStack() as held:
                    sandbox = await self._make(plan, image, who, tasks, held)
                    slot.take(sandbox)
                    try:
                        if plan.limits.disk_bytes:
                            tasks.start_soon(_disk_watch(plan, sandbox).run)
                        yield sandbox
                    finally:
                        await sandbox.stop()
                        tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the body's own: what runs beside it does not fail

    async def _make(
        self,
        plan: Plan,
        image: str,
        given: SandboxIdentity | None,
        tasks: TaskGroup,
        held: ExitStack,
    ) -> DockerSandbox:
        try:
            await self._check_runtime()
            await self._end(sandbox_names.older_than(plan))
            await anyio.to_thread.run_sync(make_mount_points, plan)
            who = given
            if who is None:
                who = await anyio.to_thread.run_sync(settle, plan, self._uids, held)
            etc = await anyio.to_thread.run_sync(self._name_user, who)
            await self._trust_image(plan, image)
            security = recipe.security(await self._filter())
            volumes = await self._engine.image_volumes(image)
            make = partial(
                recipe.container, plan, who, etc, image, self._runtime, security, volumes
            )
            # Given up half-way, it would leave a container that nobody knows of.
            with anyio.CancelScope(shield=True):
                running = await self._start(plan, who, make(writable=self._writable))
                if self._writable and running.written is None:
                    # What would be written to its root could not be counted.
                    running.leash.close()
                    await self._engine.remove(running.id)
                    self._writable = False
                    running = await self._start(plan, who, make(writable=False))
        except (EngineRefused, OSError) as error:
            raise SandboxUnavailable(f"cannot make a container: {error}") from error
        except KeyError:
            raise SandboxUnavailable(f"no system-call filter for {platform.machine()}") from None
        return DockerSandbox(self._engine, running, tasks)

    async def _trust_image(self, plan: Plan, image: str) -> None:
        """What programs are to trust is the image's own list, if it has one, and the session's certificate."""
        if plan.certificates is None or plan.authority is None:
            return
        now = await self._engine.image_id(image)
        if now in self._certificates:
            own = self._certificates.pop(now)
        else:
            own = await self._engine.image_file(now, SYSTEM_CERTIFICATES)
        self._certificates[now] = own
        if len(self._certificates) > _CERTIFICATES_KEPT:  # each layer is an image
            del self._certificates[next(iter(self._certificates))]
        if own is not None:
            session = await anyio.Path(plan.authority).read_bytes()
            await anyio.Path(plan.certificates).write_bytes(own.rstrip() + b"\n" + session)

    async def _filter(self) -> str | Path:
        """The system-call filter as this engine takes it: in the request, or (Podman) in a file."""
        text = msgspec.json.encode(profile(platform.machine())).decode()
        if not await self._engine.is_podman():
            return text
        file = self._folder / f"seccomp-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        await anyio.to_thread.run_sync(write_whole, file, text)
        return file

    async def _start(
        self, plan: Plan, who: SandboxIdentity, wanted: Mapping[str, Any]
    ) -> RunningContainer:
        container = await self._engine.create(recipe.name_of(plan, secrets.token_hex(4)), wanted)
        leash: EngineStream | None = None
        try:
            leash = await self._engine.attach(container)
            await self._engine.start(container)
            found = await self._engine.inspect(container)
        except BaseException:
            if leash is not None:
                leash.close()
            await self._engine.remove(container)
            raise
        foreign = [pair.partition("=")[0] for pair in found["Config"]["Env"] or ()]
        environ, most = recipe.base_environ(plan), plan.limits.processes
        written = await anyio.to_thread.run_sync(_written, found)
        return RunningContainer(container, who, leash, environ, foreign, most, written)

    async def _end(self, wanted: sandbox_names.Wanted) -> None:
        for found in await self._engine.sandboxes():
            mark = sandbox_names.read(found["Labels"].get(PLACE, ""))
            if mark is not None and wanted(mark):
                await self._engine.remove(found["Id"])

    def _name_user(self, who: SandboxIdentity) -> Path:
        """The files that name the user inside: programs ask for their own name, and fail without one.

        Named by what is in them, so that servers share them.
        """
        folder = self._folder / f"user-{who.uid}-{who.gid}"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(folder / "passwd", recipe.passwd(who))
        write_whole(folder / "group", recipe.group(who))
        write_whole(folder / recipe.NO_SERVICES, recipe.NO_SERVICES_SCRIPT)
        (folder / recipe.NO_SERVICES).chmod(0o755)
        (folder / recipe.EMPTY).mkdir(mode=0o555, exist_ok=True)
        return folder

    @property
    def _folder(self) -> Path:
        return self._state or default_state()

    @property
    def _layers(self) -> ImageLayers:
        return ImageLayers(self._engine, self._data / "container-layers")

    async def sweep(self) -> None:
        try:
            await self._end(sandbox_names.orphaned)
        except EngineRefused as refused:
            raise SandboxFailed(f"cannot sweep containers: {refused}") from refused


async def _is_there(path: Path) -> bool:
    try:
        return await anyio.Path(path).exists()
    except PermissionError:
        return False


@contextmanager
def _said_by_engine() -> Iterator[None]:
    """What an engine refuses is a failure of its sandboxes."""
    try:
        yield
    except EngineRefused as refused:
        raise SandboxFailed(f"the engine refuses it: {refused}") from refused
    except OSError as error:
        raise SandboxFailed(f"the layer cannot be kept: {error}") from error


def _disk_watch(plan: Plan, sandbox: DockerSandbox) -> DiskWatch:
    limit = plan.limits.disk_bytes
    writable = [each.source for each in plan.shown if each.writable and each.source.is_dir()]

    async def over() -> None:
        await sandbox.fail(f"the sandbox took more than {limit} bytes of disk")

    directories = {plan.home.path, plan.workspace.path, *writable}
    if sandbox.written is not None:
        directories.add(sandbox.written)
    return DiskWatch(directories, limit, over)


def _written(container: Mapping[str, Any]) -> Path | None:
    """Where the engine keeps what is written to a container's root, if that can be looked at. Blocks."""
    layers = (container.get("GraphDriver") or {}).get("Data") or {}
    written = layers.get("UpperDir")
    if container["HostConfig"].get("ReadonlyRootfs") or not written:
        return None
    return Path(written) if os.access(written, os.R_OK | os.X_OK) else None
