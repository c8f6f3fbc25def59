"""Limits and tree kill by control groups, with plain file writes: version 2, version 1, or both.

A group is a directory in each hierarchy. A process is put in by a shell that writes `0` to every
`cgroup.procs` before it becomes the command, so nothing runs outside for a moment. Children stay in
whatever they do; that is what makes a kill complete.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox import Stats
from roost.ports.sandbox_provider import SandboxLimits
from roost.sandboxes import procfs, sandbox_names

UNIFIED: Final = "unified"
_PERIOD_US: Final = 100_000
_ONE_PROCESS: Final = 1024  # shares
_V2_NEEDS: Final = ("memory", "pids", "cpu")
_V1_WANTS: Final = ("memory", "pids", "cpu", "cpuacct", "freezer")
_PREFIX: Final = "roost-"


class Mounted(msgspec.Struct, frozen=True):
    """A hierarchy's directory that this process is in; `controllers` is empty for version 2."""

    controllers: frozenset[str]
    own: Path
    top: Path


class Group:
    """One sandbox's group: its directory in each hierarchy, by controller."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self.directories = dict(directories)

    def joins(self) -> list[Path]:
        """The files a process of one thread writes `0` to, to be in the group.

        Where there is a file for single threads, the kernel moves the writer at once; for the other one
        it stops every fork on the machine first, which takes it some ten milliseconds.
        """
        found = [directory / "tasks" for directory in sorted(self._distinct())]
        return [file if file.exists() else file.with_name("cgroup.procs") for file in found]

    def limit(self, limits: SandboxLimits) -> None:
        """Set the limits of all that is in the group together. :raises OSError: a limit cannot be set"""
        for controller, file, value in self._wanted(limits):
            directory = self.directories.get(controller, self.directories.get(UNIFIED))
            if directory is not None and (directory / file).exists():
                _write(directory / file, value)

    def _wanted(self, limits: SandboxLimits) -> Iterable[tuple[str, str, str]]:
        if limits.memory_bytes:
            memory = str(limits.memory_bytes)
            yield "memory", "memory.limit_in_bytes", memory
            yield "memory", "memory.memsw.limit_in_bytes", memory
            yield "memory", "memory.max", memory
            yield "memory", "memory.swap.max", "0"
        if limits.processes:
            yield "pids", "pids.max", str(limits.processes)
        if limits.cpus:
            quota = int(limits.cpus * _PERIOD_US)
            # By itself a group weighs as much as one process beside it, however many are in it.
            yield "cpu", "cpu.shares", str(int(limits.cpus * _ONE_PROCESS))
            yield "cpu", "cpu.cfs_period_us", str(_PERIOD_US)
            yield "cpu", "cpu.cfs_quota_us", str(quota)
            yield "cpu", "cpu.max", f"{quota} {_PERIOD_US}"

    def pids(self) -> set[int]:
        """The pids of the processes that are in it now."""
        found: set[int] = set()
        for file in self.joins():
            found |= {int(word) for word in _read(file.with_name("cgroup.procs")).split()}
        return found

    def destroy(self, *, seconds: float = 10.0) -> None:
        """Kill everything in it, wait until it is empty, and remove it. Blocks.

        :raises SandboxFailed: something in it does not die
        """
        deadline = time.monotonic() + seconds
        # Both again and again: somebody may join between the two.
        while not (self._killed() and self._removed()):
            if time.monotonic() > deadline:
                raise SandboxFailed(f"the control group does not become empty: {self}")
            time.sleep(0.001)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing in it run meanwhile. Blocks for a moment."""
        unified, freezer = self.directories.get(UNIFIED), self.directories.get("freezer")
        if unified is not None and _written(unified / "cgroup.freeze", "1"):
            file, thaw = unified / "cgroup.freeze", "0"
        elif freezer is not None and _written(freezer / "freezer.state", "FROZEN"):
            file, thaw = freezer / "freezer.state", "THAWED"
        else:
            yield
            return
        try:
            yield
        finally:
            _written(file, thaw)

    def _killed(self) -> bool:
        unified = self.directories.get(UNIFIED)
        if unified is None or not _written(unified / "cgroup.kill", "1"):
            self._kill_each()
        return not self.pids()

    def _kill_each(self) -> None:
        # Frozen first: what forks faster than it is counted cannot be caught otherwise.
        freezer = self.directories.get("freezer")
        if freezer is not None:
            _written(freezer / "freezer.state", "FROZEN")
        for pid in self.pids():
            procfs.send(pid, signal.SIGKILL, still=lambda pid=pid: pid in self.pids())  # type: ignore[misc]
        if freezer is not None:
            _written(freezer / "freezer.state", "THAWED")

    def _removed(self) -> bool:
        """Remove the directories; the kernel refuses for some milliseconds after the last exit."""
        gone = True
        for directory in self._distinct():
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone

    def stats(self) -> Stats:
        """What all processes in it use together."""
        return Stats(
            memory_bytes=self._memory(),
            processes=len(self.pids()),  # not `pids.current`, which counts threads and zombies
            cpu_seconds=self._cpu(),
        )

    def _memory(self) -> int | None:
        used = self._number("memory", "memory.usage_in_bytes", "memory.current")
        if used is None:
            return None
        # Files that were read lately are counted, but are given back at once when memory is short.
        spare = self._keyed("memory", "memory.stat", "total_inactive_file", "inactive_file")
        return max(0, used - (spare or 0))

    def _cpu(self) -> float | None:
        nanoseconds = self._number("cpuacct", "cpuacct.usage")
        if nanoseconds is not None:
            return nanoseconds / 1e9
        microseconds = self._keyed("cpu", "cpu.stat", "usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def _number(self, controller: str, *files: str) -> int | None:
        for file in files:
            text = _read(self._of(controller) / file).strip()
            if text.isdigit():
                return int(text)
        return None

    def _keyed(self, controller: str, file: str, *keys: str) -> int | None:
        pairs = dict(line.split(" ", 1) for line in _read(self._of(controller) / file).splitlines())
        return next((int(pairs[key]) for key in keys if key in pairs), None)

    def _of(self, controller: str) -> Path:
        fallback = self.directories.get(UNIFIED, Path(os.devnull))
        return self.directories.get(controller, fallback)

    def _distinct(self) -> set[Path]:
        return set(self.directories.values())

    def __str__(self) -> str:
        return ", ".join(map(str, sorted(self._distinct())))


class Cgroups:
    """What this machine lets us do with control groups. `controllers` is empty: nothing."""

    def __init__(self, bases: Mapping[str, Path]) -> None:
        self._bases = dict(bases)
        self.controllers = frozenset(self._bases)

    def create(self, name: str, limits: SandboxLimits) -> Group | None:
        """A group for the sandbox of that name, or None if this machine gives none. Blocks.

        :raises OSError: it cannot be made
        """
        if not self._bases:
            return None
        group = Group({controller: base / name for controller, base in self._bases.items()})
        try:
            for directory in set(group.directories.values()):
                directory.mkdir()
            group.limit(limits)
        except OSError:
            group.destroy()
            raise
        return group

    def named(self, wanted: sandbox_names.Wanted) -> list[Group]:
        """The groups whose names are wanted, also those that are empty or only half made. Blocks."""
        bases = set(self._bases.values())
        names = set[str]().union(*map(os.listdir, bases))  # hundreds, whenever a sandbox is opened
        return [
            Group({c: base / name for c, base in self._bases.items() if (base / name).exists()})
            for name in names
            if (mark := sandbox_names.read(name)) is not None and wanted(mark)
        ]

    def says(self, controller: str) -> str | None:
        """How a controller is in force, for people; None if it is not."""
        if controller in self._bases:
            version = 2 if self._bases[controller] == self._bases.get(UNIFIED) else 1
            return f"control group, version {version}"
        return None

    def says_kill(self) -> str | None:
        """How a whole group is killed."""
        if UNIFIED in self._bases:
            return "cgroup.kill"
        return "control group, one by one" if self._bases else None


def detect() -> Cgroups:
    """Which control groups this process may make, found out by making one. Blocks."""
    mounts = _mounted()
    v1: dict[str, Path] = {}
    v1 |= {c: m.own for c in _V1_WANTS for m in mounts if c in m.controllers and _usable(m.own)}
    unified = next((m for m in mounts if not m.controllers), None)
    if "memory" in v1 or "pids" in v1:
        # With both versions mounted, a directory in the second gives `cgroup.kill`.
        if unified is not None and _usable(unified.own):
            v1[UNIFIED] = unified.own
        return Cgroups(v1)
    base = _v2_base(unified) if unified is not None else None
    return Cgroups({} if base is None else dict.fromkeys((*_V2_NEEDS, UNIFIED), base))


def _mounted() -> list[Mounted]:
    own = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    return list(read_mounts(Path("/proc/self/mountinfo").read_text(), own))


def read_mounts(mountinfo: str, own: Mapping[str, str]) -> Iterable[Mounted]:
    """The hierarchies in a `mountinfo`; `own` is where this process is, by controllers."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = set(options.split(",")) if kind == "cgroup" else set()
        for controllers, path in own.items():
            if (names & set(controllers.split(","))) if names else not controllers:
                inner = path.removeprefix(root) if path.startswith(root) else ""
                yield Mounted(frozenset(names), Path(point, inner.strip("/")), Path(point))


def _v2_base(unified: Mounted) -> Path | None:
    """Where groups with controllers can be made: in our own, if it is ours alone, or at the top.

    A group that passes controllers on must hold no processes itself, so ours moves one down.
    """
    if unified.own != unified.top and _only_ours(unified.own) and _usable(unified.own):
        leaf = unified.own / f"{_PREFIX}server"
        leaf.mkdir(exist_ok=True)
        for pid in _read(unified.own / "cgroup.procs").split():
            _written(leaf / "cgroup.procs", pid)
        if _passes_on(unified.own):
            return unified.own
    return unified.top if _usable(unified.top) and _passes_on(unified.top) else None


def _passes_on(base: Path) -> bool:
    enabled = _read(base / "cgroup.subtree_control").split()
    missing = [f"+{controller}" for controller in _V2_NEEDS if controller not in enabled]
    return not missing or _written(base / "cgroup.subtree_control", " ".join(missing))


def _only_ours(group: Path) -> bool:
    ours = {seen.pid for seen in procfs.descendants([os.getpid()])}
    return {int(word) for word in _read(group / "cgroup.procs").split()} <= ours


def _usable(base: Path) -> bool:
    trial = base / f"{_PREFIX}trial-{os.getpid()}"
    try:
        trial.mkdir(exist_ok=True)
        usable = os.access(trial / "cgroup.procs", os.W_OK)
        trial.rmdir()
    except OSError:
        return False
    return usable


def _write(file: Path, value: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # must be there: never made by us
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _written(file: Path, value: str) -> bool:
    try:
        _write(file, value)
    except OSError:
        return False
    return True


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
