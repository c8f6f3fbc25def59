"""What `/proc` says about processes. Every read may find the process gone; that is not an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_PIECE = 65536


class ProcessInfo(NamedTuple):
    """A process at the moment it was looked at. `start` tells it from a later one of the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    cpu_ticks: int
    start: int
    pages: int


def look(pid: int) -> ProcessInfo | None:
    """The process, unless it is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may hold anything, spaces and brackets too.
    state, *rest = text.rpartition(")")[2].split()
    if state in "ZX":
        return None
    parent, group, session = map(int, rest[:3])
    return ProcessInfo(
        pid, parent, group, session, int(rest[10]) + int(rest[11]), int(rest[18]), int(rest[20])
    )


def everything() -> Iterator[ProcessInfo]:
    """Every process there is, one after the other."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (seen := look(int(folder.name))) is not None:
            yield seen


def descendants(roots: Collection[int]) -> list[ProcessInfo]:
    """The processes with these pids, and all that came from them and still have them as forebears."""
    all_of_them = {seen.pid: seen for seen in everything()}
    children: dict[int, list[int]] = {}
    for seen in all_of_them.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    todo, found = list(roots), []
    while todo:
        pid = todo.pop()
        if pid in all_of_them:
            found.append(all_of_them[pid])
        todo += children.pop(pid, [])
    return found


def children(pid: int) -> list[int]:
    """The pids of a process's children."""
    try:
        return [int(word) for word in (_PROC / f"{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # gone, or a kernel without this file
        return [seen.pid for seen in everything() if seen.parent == pid]
    except OSError:
        return []


def inner_pids(pid: int) -> list[int]:
    """The process's pids: in our pid namespace, then in each one inside that; empty if it is gone."""
    for line in raw(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return []


def inner_pid(pid: int) -> int | None:
    """The process's pid in its innermost pid namespace."""
    return next(reversed(inner_pids(pid)), None)


def command_line(pid: int) -> list[bytes]:
    """The process's arguments; empty if it is gone or about to be."""
    line = raw(pid, "cmdline")
    return line.split(b"\0") if line else []


def raw(pid: int, file: str) -> bytes:
    """What a file of the process holds; nothing if it is gone, or is not ours to know."""
    try:
        opened = os.open(f"/proc/{pid}/{file}", os.O_RDONLY | os.O_CLOEXEC)  # a Path is slow
    except OSError:
        return b""
    data = b""
    try:
        while piece := os.read(opened, _PIECE):
            data += piece
    except OSError:
        return b""
    finally:
        os.close(opened)
    return data


def send(pid: int, number: int, still: Callable[[], bool]) -> bool:
    """Send a signal if `still` holds once the process cannot be mistaken for another any more."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not still():
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
