"""Where the agent of a session finds its MCP servers: on its sandbox's own loopback, or on the host's.

Everybody on the machine can connect to the host's. So there only processes of the server's own user are served, as
whom sessions without isolation run, and of these only who knows a word in the address that the session was given:
other sessions run as that user, too.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import httpx2
from anyio.abc import ByteStream

from roost.egress.unix import UnixStream
from roost.errors import Unavailable
from roost.ports.egress import Origin

FIRST_MCP_PORT: Final = 8710
"""Of a sandbox's own loopback; each server has a port, so that its paths stay as they are."""

_BACKLOG: Final = 128
_CONNECTIONS: Final = Path("/proc/net/tcp")


class LocalServer(NamedTuple):
    """The address of an MCP server for its session. `bound` is the host's port that it is at, and `word` a part
    of the query that has to be there; both only without isolation.
    """

    url: str
    word: bytes = b""
    bound: socket.socket | None = None

    @property
    def port(self) -> int | None:
        """The port in its address."""
        return httpx2.URL(self.url).port


@contextmanager
def local_servers(
    servers: Sequence[Origin], *, on_host: bool
) -> Generator[dict[str, LocalServer], None, None]:
    """Where these servers are found, by their own URLs; ports of the host are bound until the context ends.

    :raises Unavailable: there is no port
    """
    paths = {each.url: httpx2.URL(each.url).raw_path for each in servers}
    if not on_host:
        yield {
            url: LocalServer(f"http://127.0.0.1:{FIRST_MCP_PORT + index}{path.decode()}")
            for index, (url, path) in enumerate(paths.items())
        }
        return
    with ExitStack() as stack:
        yield {
            url: _on_host(path, stack.enter_context(socket.socket())) for url, path in paths.items()
        }


def _on_host(path: bytes, bound: socket.socket) -> LocalServer:
    word = f"roost={secrets.token_hex(16)}".encode()
    try:
        bound.bind(("127.0.0.1", 0))
        bound.listen(_BACKLOG)
    except OSError as error:
        raise Unavailable(f"there is no port for an MCP server: {error}") from None
    bound.setblocking(False)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{with_word(path, word).decode()}"
    return LocalServer(url, word, bound)


def with_word(path: bytes, word: bytes) -> bytes:
    """A path with the word in its query."""
    return path + (b"&" if b"?" in path else b"?") + word if word else path


def without_word(path: bytes, word: bytes) -> bytes | None:
    """The path as it was before; None: the word is not in it."""
    if not word:
        return path
    before, _, query = path.partition(b"?")
    rest = [each for each in query.split(b"&") if not secrets.compare_digest(each, word)]
    if len(rest) == len(query.split(b"&")):
        return None
    return before + (b"?" + b"&".join(rest) if rest else b"")


def for_own_user(
    handler: Callable[[ByteStream], Awaitable[None]],
) -> Callable[[ByteStream], Awaitable[None]]:
    """A handler that hangs up on connections of other users of this machine."""

    async def serve(stream: ByteStream) -> None:
        assert isinstance(stream, UnixStream)
        if await anyio.to_thread.run_sync(is_own, stream.raw):
            await handler(stream)

    return serve


def is_own(connection: socket.socket) -> bool:
    """Whether the other end of a connection over IPv4 belongs to this user. Blocks for a moment."""
    there, here = _written(connection.getpeername()), _written(connection.getsockname())
    for line in _CONNECTIONS.read_text().splitlines()[1:]:
        _, local, remote, _, _, _, _, uid, *_ = line.split()
        if (local, remote) == (there, here):
            return int(uid) == os.geteuid()
    return False


def _written(address: tuple[str, int]) -> str:
    """As the system's table has it: the bytes of the address in the machine's order, and the port."""
    host, port = address
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
