"""From the server's process to the command inside: a chain of programs, each becoming the next.

    sh        is first to be killed when memory runs out; joins the control group
    unshare   only if something has to be staged: see `stage`
    prlimit   open files, size of a file, no core dumps
    setpriv   only for root: becomes the session's uid
    bwrap     makes the sandbox; its arguments (`recipe`) come in a memory file, to show in no process list
    sh        inside: says that it is there, and becomes the command

The process id stays the same up to bwrap, and nothing of ours has to run between fork and exec.
"""

from __future__ import annotations

import os
import resource
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from roost.ports.sandbox import Limits, Plan
from roost.sandboxes.bubblewrap import recipe
from roost.sandboxes.bubblewrap.identity import Identity
from roost.sandboxes.bubblewrap.stage import Stage
from roost.sandboxes.bubblewrap.tools import Tools
from roost.sandboxes.cgroups import Group
from roost.sandboxes.processes import BECOME

_SHELL: Final = "/bin/sh"


class Launch(msgspec.Struct, frozen=True):
    """A command line, and the descriptors it needs. `info` is where bwrap tells of its child."""

    argv: Sequence[str]
    descriptors: Sequence[int]
    info: int


class Ground(msgspec.Struct, frozen=True):
    """What the machine has for all sandboxes of a provider."""

    tools: Tools
    stage: Path
    etc: Path
    filters: Sequence[bytes]


class Launcher:
    """How the commands of one sandbox are started. `token` marks them for whoever looks for them."""

    def __init__(
        self, plan: Plan, who: Identity, group: Group | None, ground: Ground, token: str
    ) -> None:
        stage = Stage(ground.stage, active=who.dropped)
        self._ground = ground
        self.token = token
        self._environ = recipe.BASE_ENVIRON | dict(plan.environ)
        self._arguments = recipe.arguments(plan, ground.etc, stage.shown)
        self._before = [
            *(_SHELL, "-c", _first(group, who), "sh"),
            *_rlimits(plan.limits, ground.tools, alone=group is None),
            *_as_somebody(who, ground.tools),
            _within_reach(ground.tools.bwrap, stage),
        ]
        self._before[4:4] = _staged(stage, ground.tools)
        self._inside = _inner_rlimits(plan.limits, ground.tools) if group is None else []

    @contextmanager
    def prepared(
        self, argv: Sequence[str], environ: Mapping[str, str] | None, cwd: str
    ) -> Iterator[Launch]:
        """A command, ready to be started while the body runs."""
        opened: list[int] = []
        try:
            filters = [_memory_file(opened, data) for data in self._ground.filters]
            # Not a pipe: if we are dead by then, bwrap would be killed by it, halfway, and its child
            # would wait for ever to be let go.
            info = _memory_file(opened, b"")
            merged = self._environ | dict(environ or {})
            arguments = [*self._arguments, *recipe.per_command(merged, cwd, filters)]
            arguments += ["--info-fd", str(info)]
            given = _memory_file(opened, "\0".join(arguments).encode() + b"\0")
            inside = [_SHELL, "-c", BECOME, "sh", *self._inside, *argv]
            # An option that does nothing, to have the token in the process list.
            command = [
                *self._before,
                "--unsetenv",
                self.token,
                "--args",
                str(given),
                "--",
                *inside,
            ]
            yield Launch(command, [*filters, info, given], info)
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _memory_file(opened: list[int], data: bytes) -> int:
    descriptor = os.memfd_create("roost", os.MFD_CLOEXEC)
    opened.append(descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _first(group: Group | None, who: Identity) -> str:
    lines = [
        "echo 500 2>/dev/null >/proc/self/oom_score_adj",
        f"umask {'0002' if who.shared else '0022'}",
    ]
    files = group.joins() if group else []
    lines += [f"echo 0 >{shlex.quote(str(file))} || exit 125" for file in files]
    return "\n".join([*lines, 'exec "$@"'])


def _staged(stage: Stage, tools: Tools) -> list[str]:
    script = stage.script(tools.mount or "mount")
    if script is None:
        return []
    private = [tools.unshare or "unshare", "--mount", "--propagation", "slave", "--"]
    return [*private, _SHELL, "-c", f'{script} || exit 125\nexec "$@"', "sh"]


def _rlimits(limits: Limits, tools: Tools, *, alone: bool) -> list[str]:
    wanted = [("nofile", resource.RLIMIT_NOFILE, limits.open_files)]
    wanted += [("fsize", resource.RLIMIT_FSIZE, limits.disk_bytes)]
    if alone:  # of each process only, where a control group counts all of them
        wanted += [("data", resource.RLIMIT_DATA, limits.memory_bytes)]
    options = ["--core=0:0"]
    for option, which, value in wanted:
        if value:
            _, hard = resource.getrlimit(which)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            options.append(f"--{option}={most}:{most}")
    return [tools.prlimit, *options, "--"]


def _inner_rlimits(limits: Limits, tools: Tools) -> list[str]:
    """Set inside, it counts the sandbox's own processes; outside, all of the uid's on the machine."""
    if not limits.processes or not tools.prlimit.startswith("/usr/"):
        return []
    return [tools.prlimit, f"--nproc={limits.processes}:{limits.processes}", "--"]


def _as_somebody(who: Identity, tools: Tools) -> list[str]:
    if not who.dropped:
        return []
    ids = [f"--reuid={who.uid}", f"--regid={who.gid}", "--clear-groups", "--inh-caps=-all"]
    return [tools.setpriv or "setpriv", *ids, "--"]


def _within_reach(bwrap: Path, stage: Stage) -> str:
    home = bwrap.parents[2]  # the package's own brings a library that lies beside its folder
    return f"{stage.shown(home).rstrip('/')}/{bwrap.relative_to(home)}"
