"""Ports on the loopback of a sandbox's command that the server itself listens on.

A socket belongs to the network it was made in, whoever holds it. So a thread of the server's enters the
network of a command that is about to start, opens the ports there, and ends; nothing has to run inside.
That needs a server that may enter namespaces: for others there is `guest/forward.py`, a program that
starts before every command and takes longer for it than bwrap does.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import anyio

from roost.ports.sandbox_provider import Take
from roost.sandboxes import procfs

_NETWORK: Final = 0x40000000  # CLONE_NEWNET
_SYS_ADMIN: Final = 1 << 21
_BACKLOG: Final = 128
_PAUSE: Final = 0.1
_libc = ctypes.CDLL(None, use_errno=True)


def may_enter() -> bool:
    """Whether this process may enter the networks of its sandboxes."""
    for line in procfs.raw(os.getpid(), "status").splitlines():
        if line.startswith(b"CapEff:"):
            return os.geteuid() == 0 and bool(int(line.split()[1], 16) & _SYS_ADMIN)
    return False


def listen(pid: int, ports: Iterable[int], still: Callable[[], bool]) -> list[socket.socket]:
    """Open ports in the network of a process, if `still` holds once it cannot be mistaken for another.

    Blocks for a fraction of a millisecond. :raises OSError: they cannot be opened
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not still() or os.fstat(network).st_ino == Path("/proc/self/ns/net").stat().st_ino:
            raise ProcessLookupError("the command is gone")
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(_listen_in, network, ports).result()
    finally:
        os.close(network)


def _listen_in(network: int, ports: Iterable[int]) -> list[socket.socket]:
    if _libc.setns(network, _NETWORK):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "the sandbox's network")
    with ExitStack() as opened:
        made = []
        for port in ports:
            listener = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind(("127.0.0.1", port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            made.append(listener)
        opened.pop_all()
    return made


async def attend(listener: socket.socket, take: Take) -> None:
    """Have those who come to a port taken, until it is closed."""
    with suppress(anyio.ClosedResourceError):
        while listener.fileno() >= 0:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
                continue
            except OSError:  # no descriptor is left, or the client is gone already: both pass
                await anyio.sleep(_PAUSE)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await take(connection)


def close(listener: socket.socket) -> None:
    """Close a port, also for whoever attends it."""
    anyio.notify_closing(listener)
    listener.close()
