"""From the server's process to the command inside: a chain of programs, each becoming the next.

    prlimit   open files, size of a file, no core dumps; without a control group memory, and for root processes
    sh        is first to be killed when memory runs out; joins the control group; waits for the rest
    nsenter   only if something had to be staged: see `stage`
    setpriv   only for root: becomes the session's uid
    bwrap     makes the sandbox; its arguments (`recipe`) come in a memory file, to show in no process list
    sh        inside: says that it is there, and becomes the command

The process id stays the same up to bwrap, and nothing of ours has to run between fork and exec. What is inside may be
a layer's own, so no limit is left to it.

To join a control group takes the kernel some ten milliseconds. So a sandbox's first command sets out as
soon as there is a group, whatever it will be, and joins while the rest is prepared. What it then becomes
is a script that it reads from a memory file of the server's: a shell has no other way to learn it late.
"""

from __future__ import annotations

import os
import resource
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import Plan, SandboxLimits
from roost.sandboxes.bubblewrap import recipe
from roost.sandboxes.bubblewrap.identity import SandboxIdentity
from roost.sandboxes.bubblewrap.root import CommandRoot, Root, WritableRoot
from roost.sandboxes.bubblewrap.stage import MountStage
from roost.sandboxes.bubblewrap.tools import Tools
from roost.sandboxes.cgroups import Group
from roost.sandboxes.processes import BECOME

_SHELL: Final = "/bin/sh"
# It ends with the server: then nobody tells it anything.
_WAIT: Final = 'read -r OLDPWD || exit 125\n. "$1"'


class LaunchSetup(msgspec.Struct, frozen=True):
    """What the machine has for all sandboxes of a provider.

    `roots` is where they keep what is written to their roots; None: those are read-only, and `read_only` says why.
    """

    tools: Tools
    stage: Path
    etc: Path
    filters: Sequence[bytes]
    forged_owners: bytes
    roots: Path | None = None
    read_only: str = ""


class Launch:
    """One command's start: the command line it sets out with, and the descriptors that bwrap will need.

    `info` is where bwrap tells of its child. It is not a pipe: if we are dead by then, bwrap would be
    killed by it, halfway, and its child would wait for ever to be let go.
    """

    def __init__(
        self, before: Sequence[str], filters: Sequence[bytes], token: str, *, waits: bool = False
    ) -> None:
        self._opened = ExitStack()
        self._is_closed = False
        self.filters = [self._memory_file(data) for data in filters]
        self.info, self._given, self._script = (self._memory_file() for _ in range(3))
        # An option that does nothing, to have the token in the process list.
        self._token = ["--unsetenv", token]
        self.root: Path | None = None
        """What it writes to its root, and nobody keeps; set when it is known what it becomes."""
        self.argv = [*before, f"/proc/{os.getpid()}/fd/{self._script}", *self._token]
        self._gate = self._pipe() if waits else None

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that the process inherits."""
        gate = [self._gate[0]] if self._gate else []
        return [*self.filters, self.info, self._given, *gate]

    @property
    def waits(self) -> bool:
        """Whether bwrap waits until it is let `go`, when it has made the sandbox and nothing inside has run yet."""
        return self._gate is not None

    def go(self) -> None:
        """Let bwrap go on."""
        if self._gate is not None and not self._is_closed:
            os.write(self._gate[1], b"\n")

    def tell(
        self, umask: str, bwrap: Sequence[str], given: Sequence[str], inside: Sequence[str]
    ) -> None:
        """What it becomes: bwrap, `given` some arguments in a file, to run a command `inside`.

        :raises SandboxFailed: it cannot
        """
        if any("\0" in argument for argument in inside):
            raise SandboxFailed("cannot start a command: an argument holds a zero byte")
        if self._is_closed:
            return  # it is gone already, and its descriptors may be others' by now
        options = ["--info-fd", str(self.info)]
        options += ["--block-fd", str(self._gate[0])] if self._gate else []
        os.write(self._given, "\0".join([*given, *options, ""]).encode())
        os.lseek(self._given, 0, os.SEEK_SET)
        command = [*bwrap, *self._token, "--args", str(self._given), "--", *inside]
        os.write(self._script, os.fsencode(f"umask {umask}\nexec {shlex.join(command)}\n"))

    def close(self) -> None:
        """Let go of it, once bwrap has all it needs, or is gone with all that it has started: what waits to be let go
        takes the end of its gate for that.
        """
        self._is_closed = True
        self._opened.close()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        for end in ends:
            self._opened.callback(os.close, end)
        return ends

    def _memory_file(self, data: bytes = b"") -> int:
        descriptor = os.memfd_create("roost", os.MFD_CLOEXEC)
        self._opened.callback(os.close, descriptor)
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor


class Launcher:
    """How the commands of one sandbox are started. `token` marks them for whoever looks for them.

    They may set out at once; what they become is known when it is `settled`.
    """

    def __init__(
        self,
        plan: Plan,
        group: Group | None,
        ground: LaunchSetup,
        token: str,
        root: Root | None,
    ) -> None:
        self.token = token
        self.group = group
        self.ports = {
            each.port: each.take for each in plan.endpoints if each.port is not None and each.take
        }
        self.takes_all = all(each.take for each in plan.endpoints if each.port is not None)
        self.held = ExitStack()
        """What is given back when the sandbox is gone."""
        self.root = root
        self._plan = plan
        self._ground = ground
        self._builds = root is not None and root.builds
        self.processes = plan.limits.processes if group is None and not _has_uids() else 0
        """How many of them a command may have, if nothing else counts them."""
        self._before = [
            *_rlimits(plan.limits, ground.tools, alone=group is None),
            *(_SHELL, "-c", _first(group), "sh"),
        ]

    def settle(self, who: SandboxIdentity) -> None:
        """All that is known of the sandbox. Blocks. :raises OSError: something cannot be shown"""
        plan, tools = self._plan, self._ground.tools
        stage = MountStage(self._ground.stage, active=who.dropped)
        self._umask = "0002" if who.shared else "0022"
        self._environ = recipe.BASE_ENVIRON | dict(plan.environ)
        etc = self._ground.etc if self.root is None else self.root.etc(self._ground.etc)
        self._arguments = recipe.arguments(plan, etc, stage.shown, builds=self._builds)
        if self.root is not None:
            self.root.prepare(who)
            if isinstance(self.root, WritableRoot):
                self.held.callback(os.close, self.root.hold())
            self._root = stage.shown(self.root.directory)
            below = self.root.below().items()
            self._below = {part: [*map(stage.shown, layers)] for part, layers in below}
        bwrap = [*_as_somebody(who, tools), _within_reach(tools.bwrap, stage)]
        staged = stage.build()
        if staged is not None:
            self.held.callback(os.close, staged)
        self._bwrap = [*_entered(staged, tools), *bwrap]
        self._inside = [_SHELL, "-c", BECOME, "sh"]

    def begin(self) -> Launch:
        """Start the chain of programs; what the last one becomes is said by `finish`."""
        forged = [self._ground.forged_owners] if self._builds else []
        filters = [*self._ground.filters, *forged]
        return Launch(self._before, filters, self.token, waits=self.processes > 0)

    def finish(
        self, launch: Launch, argv: Sequence[str], environ: Mapping[str, str] | None, cwd: str
    ) -> None:
        """Say what it becomes. :raises SandboxFailed: :raises SandboxUnavailable: it cannot"""
        merged = self._environ | dict(environ or {})
        given = [
            *recipe.root_arguments(self._command_root(launch), self._plan.limits.tmp_bytes),
            *self._arguments,
            *recipe.per_command(merged, cwd, launch.filters),
        ]
        launch.tell(self._umask, self._bwrap, given, [*self._inside, *argv])

    def _command_root(self, launch: Launch) -> CommandRoot | None:
        if self.root is None:
            return None
        try:
            written = self.root.command()
        except OSError as error:
            raise SandboxFailed(f"there is no room for a command: {error}") from error
        launch.root = None if self._builds else written
        inner = written.relative_to(self.root.directory)
        return CommandRoot(f"{self._root}/{inner}".removesuffix("/."), self._below, self._builds)


def _first(group: Group | None) -> str:
    lines = ["echo 500 2>/dev/null >/proc/self/oom_score_adj"]
    files = group.joins() if group else []
    lines += [f"echo 0 >{shlex.quote(str(file))} || exit 125" for file in files]
    return "\n".join([*lines, _WAIT])


def _entered(staged: int | None, tools: Tools) -> list[str]:
    if staged is None:
        return []
    # Not inherited: it would be open inside.
    return [tools.nsenter or "nsenter", f"--mount=/proc/{os.getpid()}/fd/{staged}", "--"]


def _rlimits(limits: SandboxLimits, tools: Tools, *, alone: bool) -> list[str]:
    wanted = [("nofile", resource.RLIMIT_NOFILE, limits.open_files)]
    wanted += [("fsize", resource.RLIMIT_FSIZE, limits.disk_bytes)]
    if alone:  # of each process only, where a control group counts all of them
        wanted += [("data", resource.RLIMIT_DATA, limits.memory_bytes)]
    if alone and _has_uids():
        wanted += [("nproc", resource.RLIMIT_NPROC, limits.processes)]
    options = ["--core=0:0"]
    for option, which, value in wanted:
        if value:
            _, hard = resource.getrlimit(which)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            options.append(f"--{option}={most}:{most}")
    return [tools.prlimit, *options, "--"]


def _has_uids() -> bool:
    """Whether each sandbox has a uid of its own. Then a limit of processes that is set outside counts those of the
    sandbox; else all of the server's uid, and it is set when the command is in a namespace of its own.
    """
    return os.geteuid() == 0


def _as_somebody(who: SandboxIdentity, tools: Tools) -> list[str]:
    if not who.dropped:
        return []
    ids = [f"--reuid={who.uid}", f"--regid={who.gid}", "--clear-groups", "--inh-caps=-all"]
    return [tools.setpriv or "setpriv", *ids, "--"]


def _within_reach(bwrap: Path, stage: MountStage) -> str:
    home = bwrap.parents[2]  # the package's own brings a library that lies beside its folder
    return f"{stage.shown(home).rstrip('/')}/{bwrap.relative_to(home)}"
