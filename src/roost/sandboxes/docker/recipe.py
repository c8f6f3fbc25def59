"""What a container is made of, and how a command in it begins. Pure, but for the sandbox's name."""

from __future__ import annotations

import posixpath
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox_provider import SYSTEM_CERTIFICATES, Plan, SandboxLimits
from roost.sandboxes import sandbox_names
from roost.sandboxes.bubblewrap.identity import SandboxIdentity
from roost.sandboxes.bubblewrap.recipe import BASE_ENVIRON, HOME, MASKED, SCRATCH, WORKSPACE
from roost.sandboxes.docker.engine import LABEL, PLACE

# The first process holds the sandbox open, and reaps what others leave: it ends, and all with it, when its
# input does, that is when the server goes, however it goes. A `cat` killed from inside is replaced.
_HOLD: Final = ["/bin/sh", "-c", "until cat >/dev/null; do [ $? -gt 128 ] || exit; done"]
# A command waits until it is told to begin: a server that gave up meanwhile has hung up, and nothing has
# run. It says its pid, for signals. The line that is read goes where the shell forgets it.
_BEGIN: Final = """
cd -- "$1" || exit 125
shift
umask {umask}
{limit}
echo $$
read -r OLDPWD || exit 125
unset {names}
exec "$@"
"""
# Of the session's own processes, by its uid: dash and bash do not agree on the letter.
_NO_MORE_THAN: Final = "ulimit -u {most} 2>/dev/null || ulimit -p {most} 2>/dev/null"
_ROOM: Final = 32
"""Processes and threads that a container may have beyond those of the session: what an engine starts a command
with counts among its own until it has become the command, and dies if a fork bomb has left it no room."""
# Everything in the command's session, as an engine starts each command in one of its own; itself first,
# or it could still answer to the death of the others.
_KILL: Final = """
kill -KILL "$0"
for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    set -- ${line##*) }
    [ "$4" = "$0" ] || continue
    pid=${file#/proc/}
    kill -KILL "${pid%/stat}"
done
"""
BUILDER: Final = SandboxIdentity(0, 0, dropped=False, shared=False)
"""Who installs the packages of a layer: root, in a container with nothing in it."""

# As engines give them to every container, without those that are for networks, devices and other roots.
_BUILDER_MAY: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID"]
NO_SERVICES: Final = "no-services"
NO_SERVICES_SCRIPT: Final = "#!/bin/sh\nexit 101\n"
"""What Debian's packages ask before they start a service."""

EMPTY: Final = "empty"
"""The name of an empty directory beside the files that name the user."""

_SHARED_MEMORY_BYTES: Final = 64 * 1024**2
_COVERED: Final = [
    "/sys",
    *(f"/proc/{name}" for name in f"{MASKED} acpi asound interrupts scsi".split()),
]
_READ_ONLY: Final = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys")]
_ADDED_BY_SHELLS_AND_ENGINES: Final = ("OLDPWD", "SHLVL", "HOSTNAME", "TERM", "container")
_ROOMS: Final = ("/tmp", *SCRATCH)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def name_of(plan: Plan, token: str) -> str:
    """No two sandboxes have the same, not even those of one session and generation."""
    session = re.sub(r"[^A-Za-z0-9_.-]", "-", plan.session_id)
    return f"roost-{session}-{plan.generation}-{token}"


def container(
    plan: Plan,
    who: SandboxIdentity,
    etc: Path,
    image: str,
    runtime: str | None,
    security: Sequence[str],
    volumes: Sequence[str],
    *,
    writable: bool,
) -> dict[str, Any]:
    """What to create; `etc` holds `EMPTY` and the files that name the user, `security` are the engine's
    options, `volumes` the image's. `writable`: what is written to its root is its own, and is counted.
    """
    host = (
        _apart(security)
        | ({"CapAdd": _BUILDER_MAY} if who == BUILDER else {})
        | {"ReadonlyRootfs": not writable}
        | _limits(plan.limits, who, uncounted(plan, volumes))
        | {"Mounts": [*_mounts(plan, etc), *_system_files(who, etc)]}
    )
    return {
        "Image": image,
        "Entrypoint": _HOLD,
        "Cmd": [],
        "User": f"{who.uid}:{who.gid}",
        "Hostname": "sandbox",
        "WorkingDir": "/",
        "OpenStdin": True,
        "StdinOnce": True,
        "StopSignal": "SIGKILL",  # a first process is deaf to others, and engines that stop would wait
        "Labels": {LABEL: plan.session_id, PLACE: sandbox_names.name_of(plan)},
        "HostConfig": host | ({"Runtime": runtime} if runtime else {}),
    }


def uncounted(plan: Plan, volumes: Iterable[str]) -> list[str]:
    """The volumes of an image that nothing of the plan's covers. What an engine keeps in them is in no limit of the disk
    and in no layer, so they are in memory, as `/tmp` is.

    :raises SandboxUnavailable: one would be in a directory that the inside can write: an engine that makes a directory
        there follows links
    """
    targets = [HOME, WORKSPACE, *(each.target for each in plan.shown)]
    found = [path for path in (_plain(each) for each in volumes) if path not in (*targets, *_ROOMS)]
    for path in found:
        if any(path.startswith(f"{target}/") for target in targets):
            raise SandboxUnavailable(f"the image has a volume at {path}, where there can be none")
    return found


def _plain(path: str) -> str:
    return posixpath.normpath(f"/{path}").replace("//", "/")


def security(seccomp: str | Path) -> list[str]:
    """What no container may do. A filter in a file is Podman's way, which is told here what to cover, too."""
    options = ["no-new-privileges:true", f"seccomp={seccomp}"]
    return options if isinstance(seccomp, str) else [*options, f"mask={':'.join(_COVERED)}"]


def _apart(security: Sequence[str]) -> dict[str, Any]:
    """What is the same for every container of ours."""
    return {
        "AutoRemove": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "CapDrop": ["ALL"],
        "SecurityOpt": list(security),
        "MaskedPaths": _COVERED,
        "ReadonlyPaths": _READ_ONLY,
        "LogConfig": {"Type": "none"},
        "OomScoreAdj": 500,
    }


def command(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: str,
    who: SandboxIdentity,
    foreign: Iterable[str],
    processes: int,
) -> dict[str, Any]:
    """One that begins when a line is sent to it; `foreign` are variables of the image, and the session
    may have so many `processes`.

    :raises SandboxFailed: there cannot be such a command
    """
    if any("\0" in word for word in (*argv, cwd, *environ.values())):
        raise SandboxFailed("cannot start a command: an argument or a variable holds a zero byte")
    if wrong := [name for name in environ if not _NAME.fullmatch(name)]:
        raise SandboxFailed(f"not an environment variable: {wrong[0]!r}")
    added = {*_ADDED_BY_SHELLS_AND_ENGINES, *filter(_NAME.fullmatch, foreign)}
    names = " ".join(sorted(added - environ.keys()))
    limit = _NO_MORE_THAN.format(most=processes) if processes and who.dropped else ""
    script = _BEGIN.format(umask="0002" if who.shared else "0022", names=names, limit=limit)
    return {
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Env": [f"{name}={value}" for name, value in environ.items()],
        "Cmd": ["/bin/sh", "-c", script, "sh", cwd, *argv],
    }


NOTHING: Final = {"Cmd": ["/bin/sh", "-c", ":"]}
"""A command that does nothing, to see whether one can be started."""


def signalling(pid: int, number: int) -> dict[str, Any]:
    """A command that signals another one; what cannot be refused goes to all that came from it."""
    script = _KILL if number == 9 else f'kill -{number} "$0"'
    return {"Cmd": ["/bin/sh", "-c", script, str(pid)]}


def passwd(who: SandboxIdentity) -> str:
    """The content of `/etc/passwd` inside."""
    return (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"sandbox:x:{who.uid}:{who.gid}:sandbox:{HOME}:/bin/sh\n"
    )


def group(who: SandboxIdentity) -> str:
    """The content of `/etc/group` inside."""
    return f"root:x:0:\nsandbox:x:{who.gid}:\n"


def base_environ(plan: Plan) -> dict[str, str]:
    """What every command of a sandbox is given."""
    return BASE_ENVIRON | dict(plan.environ)


def _mounts(plan: Plan, etc: Path) -> list[dict[str, Any]]:
    made = [_bind(plan.home.path, HOME), _bind(plan.workspace.path, WORKSPACE)]
    made += [_bind(each.source, each.target, writable=each.writable) for each in plan.shown]
    # An empty directory lies over what is hidden. It is not a tmpfs: Podman fills one with what it covers.
    hidden = [f"{WORKSPACE}/{name}" for name in plan.hidden]
    hidden += [f"{each.target}/{name}" for each in plan.shown for name in each.hidden]
    made += [_bind(etc / EMPTY, target, writable=False) for target in hidden]
    if plan.certificates is not None:
        # In the place where most images have theirs. Programs are told by variables, too.
        made.append(_bind(plan.certificates, SYSTEM_CERTIFICATES[0], writable=False))
    return made


def _system_files(who: SandboxIdentity, etc: Path) -> list[dict[str, Any]]:
    if who == BUILDER:
        return [_bind(etc / NO_SERVICES, "/usr/sbin/policy-rc.d", writable=False)]
    return [_bind(etc / name, f"/etc/{name}", writable=False) for name in ("passwd", "group")]


def _bind(source: Path, target: str, *, writable: bool = True) -> dict[str, Any]:
    options: dict[str, Any] = {"Propagation": "rprivate"}
    if not writable and source.is_dir():
        # What is mounted below it would be writable: engines make only the top of it read-only.
        options["NonRecursive"] = True
    return {
        "Type": "bind",
        "Source": str(source.resolve()),
        "Target": target,
        "ReadOnly": not writable,
        "BindOptions": options,
    }


def _limits(limits: SandboxLimits, who: SandboxIdentity, volumes: Sequence[str]) -> dict[str, Any]:
    room = _ROOM if who.dropped else 0  # else the uid is not its own, and only the engine counts
    size = f",size={limits.tmp_bytes}" if limits.tmp_bytes else ""
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.processes + room if limits.processes else -1,
        "NanoCpus": int(limits.cpus * 1e9),
        "ShmSize": _SHARED_MEMORY_BYTES,
        "Tmpfs": dict.fromkeys([*_ROOMS, *volumes], f"rw,exec,nosuid,nodev,mode=1777{size}"),
        "Ulimits": _ulimits(limits),
    }


def _ulimits(limits: SandboxLimits) -> list[dict[str, Any]]:
    wanted = {
        "nofile": _lowest(limits.open_files, resource.RLIMIT_NOFILE),
        "nproc": _lowest(_most_pids(), resource.RLIMIT_NPROC),
        "fsize": limits.disk_bytes,
    }
    limited = {"core": 0} | {name: most for name, most in wanted.items() if most}
    return [{"Name": name, "Soft": most, "Hard": most} for name, most in limited.items()]


def _most_pids() -> int:
    """Of the machine. Podman lowers its own limit to it, and cannot go back."""
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def _lowest(wanted: int, kind: int) -> int:
    """What is wanted, and no more than we have ourselves; 0: no limit.

    An engine without the right to raise limits fails to, and so would ours. Podman raises what is not named.
    """
    _, hard = resource.getrlimit(kind)
    return min((limit for limit in (wanted, hard) if limit > 0), default=0)
