"""What a sandbox is made of: the arguments of `bwrap`. Pure, but for looking at which files there are.

Order matters to bwrap: it does what it is told from first to last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import SYSTEM_CERTIFICATES, Mount, Plan
from roost.sandboxes.bubblewrap.root import ROOMS, CommandRoot

HOME: Final = "/home/sandbox"
WORKSPACE: Final = "/workspace"
BASE_ENVIRON: Final = {
    "HOME": HOME,
    "PATH": f"{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
    # The system's Python is marked as managed by the system, which this is not: `pip install` goes to the
    # home by itself, since nothing else can be written to. PIP_USER would break it in virtual environments.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}
SCRATCH: Final = ("/mnt", "/srv")
"""Where programs expect to find room besides `/tmp`: as much as there, and gone when that is."""

_APART: Final = """
    --unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup
    --disable-userns --hostname sandbox --die-with-parent --new-session
    --cap-drop ALL --clearenv
"""
_SHARED_MEMORY_BYTES: Final = 64 * 1024**2
_ROOT_FOLDERS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Of the kernel, about the machine, or about everybody on it. Most need root anyway.
MASKED: Final = """
    cmdline config.gz kallsyms kcore keys key-users kmsg kpagecount kpageflags latency_stats
    sched_debug slabinfo sysrq-trigger timer_list vmallocinfo
"""
_RESERVED: Final = ("/usr", "/etc", "/proc", "/dev", "/sys", "/tmp", "/var")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def arguments(
    plan: Plan, etc: Path, shown: Callable[[Path], str], *, builds: bool = False
) -> list[str]:
    """What is the same for every command of a sandbox; `shown` is where bwrap finds a host path.

    `builds`: it may write to `etc`.
    """
    return [
        *_system(),
        *("--bind" if builds else "--ro-bind", shown(etc), "/etc"),
        *_certificates(plan.certificates, etc, shown),
        *_proc(),
        *_temporary(plan.limits.tmp_bytes),
        *_mounts(plan, shown),
        *_sealed(),
    ]


def root_arguments(root: CommandRoot | None, tmp_bytes: int) -> list[str]:
    """What comes first: the namespaces, and the part of the root that is a command's own. None: it has none."""
    if root is None:
        system = ["--ro-bind", "/usr", "/usr", *_rooms(["/opt"], tmp_bytes), "--dir", "/var"]
    else:
        system = [word for part in ("/usr", *ROOMS) for word in _layered(root, part)]
    user = "0" if root is not None and root.builds else "1000"
    return [*_APART.split(), "--uid", user, "--gid", user, *system]


def _layered(root: CommandRoot, part: str) -> list[str]:
    """A directory of the root: what is below, and over it what the command writes."""
    upper, below = root.directory + part, root.below.get(part) or ()
    if not below:
        return ["--bind", upper, part]
    work = f"{root.directory}/work-{part.removeprefix('/')}"
    sources = [word for lower in below for word in ("--overlay-src", lower)]
    return [*sources, "--overlay", upper, work, part]


def per_command(environ: Mapping[str, str], cwd: str, filters: Iterable[int]) -> list[str]:
    """What is added for one command; `filters` are descriptors of system-call filters.

    :raises SandboxUnavailable: a variable's name or value cannot be
    """
    added = ["--chdir", cwd]
    for name, value in environ.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise SandboxUnavailable(f"not an environment variable: {name!r}")
        added += ["--setenv", name, value]
    for descriptor in filters:
        added += ["--add-seccomp-fd", str(descriptor)]
    return added


def check_targets(mounts: Sequence[Mount]) -> None:
    """Refuse mounts that would cover the system, or that lie in what the inside can write.

    bwrap makes the mount point itself, following links: one planted in a workspace would lead it out.

    :raises SandboxUnavailable: one of the targets cannot be
    """
    writable = [HOME, WORKSPACE, *(m.target for m in mounts if m.writable)]
    targets = [HOME, WORKSPACE, *(mount.target for mount in mounts)]
    for index, mount in enumerate(mounts):
        others = [t for t in writable if t != mount.target]
        if (
            not _is_plain(mount.target)
            or _is_within(mount.target, _RESERVED + tuple(f"/{f}" for f in _ROOT_FOLDERS))
            or _is_within(mount.target, others)
            or mount.target in targets[: index + 2]
        ):
            raise SandboxUnavailable(f"nothing can be mounted at {mount.target!r}")


def _is_plain(target: str) -> bool:
    path = PurePosixPath(target)
    plain = path.is_absolute() and str(path) == target and ".." not in path.parts
    return plain and len(path.parts) > 1 and "\0" not in target


def _is_within(target: str, folders: Iterable[str]) -> bool:
    return any(target == folder or target.startswith(f"{folder}/") for folder in folders)


def _system() -> list[str]:
    made = []
    for folder in _ROOT_FOLDERS:
        path = Path("/", folder)
        if path.is_symlink():
            made += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            made += ["--ro-bind", str(path), str(path)]
    return made


def _certificates(file: Path | None, etc: Path, shown: Callable[[Path], str]) -> list[str]:
    """The sandbox's own list of trusted certificates, in the places of the system's that are there."""
    if file is None:
        return []
    inside = [path for path in SYSTEM_CERTIFICATES if _is_file(etc / path.removeprefix("/etc/"))]
    return [word for path in inside for word in ("--ro-bind", shown(file), path)]


def _is_file(path: Path) -> bool:
    # bwrap would follow a link out of the sandbox that it is just making.
    return path.is_file() and not path.is_symlink()


def _proc() -> list[str]:
    # bwrap covers /proc/sys by itself only if the caller could write to the directory, which says
    # nothing about the files in it.
    made = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for name in MASKED.split():
        if Path("/proc", name).exists():
            made += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return made


_WRITABLE: Final = ("--perms", "1777", "--tmpfs")


def _temporary(tmp_bytes: int) -> list[str]:
    return [
        *("--dev", "/dev"),
        *("--size", str(_SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"),
        *_rooms(["/tmp", *SCRATCH], tmp_bytes),
        *("--dir", "/run", "--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run"),
    ]


def _rooms(rooms: Iterable[str], tmp_bytes: int) -> list[str]:
    size = ["--size", str(tmp_bytes)] if tmp_bytes else []
    return [word for room in rooms for word in (*size, *_WRITABLE, room)]


def _mounts(plan: Plan, shown: Callable[[Path], str]) -> list[str]:
    made = ["--dir", "/home", "--bind", shown(plan.home.path), HOME]
    made += ["--bind", shown(plan.workspace.path), WORKSPACE]
    made += _covered(f"{WORKSPACE}/{name}" for name in plan.hidden)
    for mount in plan.shown:
        how = "--bind" if mount.writable else "--ro-bind"
        made += [how, shown(mount.source), mount.target]
        made += _covered(f"{mount.target}/{name}" for name in mount.hidden)
    return made


def _covered(targets: Iterable[str]) -> list[str]:
    made = []
    for over in targets:
        made += ["--size", "4096", "--perms", "0555", "--tmpfs", over, "--remount-ro", over]
    return made


def _sealed() -> list[str]:
    # Otherwise both are writable, without a limit, and are made of the machine's memory.
    return ["--remount-ro", "/dev", "--remount-ro", "/"]
