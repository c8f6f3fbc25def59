"""Unix sockets: those that one sandbox and nobody else can reach, and connections to them as anyio streams.

Each grant has a directory of its own that only the server can enter. The sockets in it are open to
everybody: whoever is given one, by a mount, runs as some user the server need not know. The
directory's name is random and says nothing: a sandbox can read the host's paths of its mounts.

anyio has streams of its own, but they are not made for uvloop, which this server runs on: there, a socket may
be announced as ready once more after it was waited for, and anyio's future for it is then resolved
twice. `anyio.wait_readable` and `wait_writable` know about that.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from roost.errors import StartupError, Unavailable

_log = logging.getLogger(__name__)

_BACKLOG = 128
_LONGEST_PATH = 100
"""A unix socket's address holds 108 bytes; longer paths take the detour in `_bind`."""


def prepare(directory: Path, names: Sequence[str]) -> None:
    """Make the directory of all grants, and remove the sockets that an earlier process left in it.

    :raises StartupError: it cannot be made
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        for left in directory.iterdir():
            _remove(left, names)
    except OSError as error:
        raise StartupError(f"{directory} cannot hold the sandboxes' sockets: {error}") from None


@contextmanager
def listening(
    directory: Path, names: Sequence[str], files: Mapping[str, bytes]
) -> Generator[tuple[Path, dict[str, socket.socket]], None, None]:
    """A fresh directory with listening sockets of those names and these files in it, until the context ends.

    :raises Unavailable: they cannot be made
    """
    own = directory / secrets.token_hex(8)
    with ExitStack() as stack:
        stack.callback(_leave, own, [*names, *files])
        try:
            own.mkdir(0o700)
            bound = {name: stack.enter_context(_bind(own, name)) for name in names}
            for name in names:
                (own / name).chmod(0o666)
            for name, data in files.items():
                (own / name).write_bytes(data)
                (own / name).chmod(0o644)
        except OSError as error:
            raise Unavailable(f"the sandbox's sockets cannot be made: {error}") from None
        yield own, bound


def _bind(directory: Path, name: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = directory / name
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            bound.bind(str(path))
        else:
            _bind_by_descriptor(bound, directory, name)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _bind_by_descriptor(bound: socket.socket, directory: Path, name: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bound.bind(f"/proc/self/fd/{handle}/{name}")
    finally:
        os.close(handle)


def _leave(directory: Path, names: Sequence[str]) -> None:
    try:
        _remove(directory, names)
    except OSError:
        _log.warning("sockets were left behind; the next start removes them", exc_info=True)


def _remove(directory: Path, names: Sequence[str]) -> None:
    if directory.is_symlink() or not directory.is_dir():
        return
    for name in names:
        (directory / name).unlink(missing_ok=True)
    # Something else in it is not ours to remove, and no reason to stop.
    if not any(directory.iterdir()):
        directory.rmdir()


class UnixStream(ByteStream):
    """A connected unix socket, or what comes to a port instead of one."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)

    @property
    def raw(self) -> socket.socket:
        """The socket itself, to see whose it is."""
        return self._socket

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for some bytes. :raises anyio.EndOfStream: there will be no more"""
        data = None
        while data is None:
            if self._socket.fileno() < 0:
                raise anyio.ClosedResourceError
            # Also if there is something: a client that always has more must not keep everybody else from running.
            await anyio.wait_readable(self._socket)
            data = self._read(max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    def _read(self, max_bytes: int) -> bytes | None:
        try:
            return self._socket.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        """Send all of the bytes. :raises anyio.BrokenResourceError: the other side is gone"""
        await anyio.lowlevel.checkpoint()
        left = memoryview(item)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """No more bytes; the other direction stays open."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close it, also for whoever waits for it in another task."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()


async def accept(listening: socket.socket) -> UnixStream:
    """Wait for the next connection. :raises OSError: the system cannot give one now"""
    while True:
        try:
            return UnixStream(listening.accept()[0])
        except BlockingIOError:
            await anyio.wait_readable(listening)
