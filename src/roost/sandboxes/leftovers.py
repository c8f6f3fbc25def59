"""Ends what sandboxes have left behind: after a server was killed, or hangs while another has its session.

A process belongs to a sandbox if its control group says so, or else its arguments (bwrap's) or its variables
(those of a sandbox that does not isolate). The last two could be made up by what runs inside some sandbox, to keep
the server busy: they are believed only of processes that cannot be inside one.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from roost.errors import SandboxFailed
from roost.sandboxes import procfs
from roost.sandboxes.cgroups import Cgroups
from roost.sandboxes.sandbox_names import PATTERN, VARIABLE, SandboxName, Wanted, parsed

_IN_GROUP: Final = re.compile(rf"/{PATTERN}(?=[/\s]|$)")
_IN_ARGUMENTS: Final = re.compile(rf"\0--unsetenv\0{PATTERN}\0")
_IN_VARIABLES: Final = re.compile(rf"(?:^|\0){VARIABLE}={PATTERN}(?=\0|$)")
_SECONDS: Final = 10.0
_LOOKS: Final = 20
_OF_THE_KERNEL: Final = (0, 2)  # parents of what is not a program and never has arguments


def end(groups: Cgroups, wanted: Wanted, *, seconds: float = _SECONDS) -> None:
    """End all of these sandboxes, and wait until they are gone. Blocks: a millisecond for 150 processes.

    :raises SandboxFailed: something does not die
    """
    end_groups(groups, wanted, seconds=seconds)
    end_processes(groups, wanted, seconds=seconds)


def end_groups(groups: Cgroups, wanted: Wanted, *, seconds: float = _SECONDS) -> None:
    """The first half: end what is in their control groups.

    :raises SandboxFailed: something does not die
    """
    for group in groups.named(wanted):
        group.destroy(seconds=seconds)


def end_processes(groups: Cgroups, wanted: Wanted, *, seconds: float = _SECONDS) -> None:
    """The second half: end what belongs to them all the same, or has just come in.

    :raises SandboxFailed: something does not die
    """
    deadline = time.monotonic() + seconds
    # Where there are groups, whoever becomes another program meanwhile is found by its group.
    found = partial(_belonging, wanted, patient=not groups.controllers)
    # Again and again: somebody may have forked between the two.
    while dying := _struck(found, wanted):
        try:
            _wait(dying, deadline)
        finally:
            for handle in dying:
                os.close(handle)


def marks_of(pid: int, *, patient: bool = False) -> list[SandboxName]:
    """The sandboxes that a process belongs to; one that is inside another's has several.

    `patient`: see `_arguments`.
    """
    found = _marks(_IN_GROUP, procfs.raw(pid, "cgroup"))
    line = _arguments(pid) if patient else procfs.raw(pid, "cmdline")
    arguments = _marks(_IN_ARGUMENTS, line)[:1]  # what follows is the command's
    variables = _marks(_IN_VARIABLES, procfs.raw(pid, "environ"))
    if arguments or variables:
        inner = procfs.inner_pids(pid)
        if len(inner) == 1:
            found += variables
        if len(inner) == 1 or inner[-1:] == [1]:  # bwrap's own, on either side of the wall
            found += arguments
    return found


def _arguments(pid: int) -> bytes:
    """A process that is becoming another program has no arguments for a moment. It is waited for: on its
    way to be bwrap, it would be missed, and go on.
    """
    for _ in range(_LOOKS):
        line = procfs.raw(pid, "cmdline")
        if line or (seen := procfs.look(pid)) is None or seen.parent in _OF_THE_KERNEL:
            return line
        time.sleep(0.0005)
    return b""


def _marks(pattern: re.Pattern[str], data: bytes) -> list[SandboxName]:
    if b"roost-" not in data:
        return []
    return [parsed(found) for found in pattern.finditer(data.decode(errors="replace"))]


def _struck(find: Callable[[], Iterator[int]], wanted: Wanted) -> list[int]:
    """Kill every process found; gives a handle for each, to wait for its end."""
    found = [handle for pid in find() if (handle := _held(pid, wanted)) is not None]
    dying = []
    # Stopped before they are killed: else one could fork while its parent is being counted.
    for handle in found:
        with suppress(OSError):
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
    for handle in found:
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            dying.append(handle)
        except OSError:  # gone meanwhile, or another user's, and theirs to sweep
            os.close(handle)
    return dying


def _belonging(wanted: Wanted, *, patient: bool) -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands, whenever a sandbox is opened
        if name.isdigit() and any(map(wanted, marks_of(int(name), patient=patient))):
            yield int(name)


def _held(pid: int, wanted: Wanted) -> int | None:
    """A handle of the process, if it still is what was looked for."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    if procfs.look(pid) is not None and any(map(wanted, marks_of(pid, patient=True))):
        return handle
    os.close(handle)
    return None


def _wait(dying: Sequence[int], deadline: float) -> None:
    """Until they are gone: the first process of a namespace goes last, when all in there are gone."""
    poll = select.poll()
    for handle in dying:
        poll.register(handle, select.POLLIN)
    left = len(dying)
    while left:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise SandboxFailed("processes of an earlier sandbox could not be killed")
        for handle, _events in ready:
            poll.unregister(handle)
        left -= len(ready)
