"""An ASGI application on a port, for as long as a context lasts."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp

from roost.errors import StartupError
from roost.serve.connections import IDLE_SECONDS, Bounds, Connections, HttpConnection
from roost.serve.sockets import WebSocketConnection

_BACKLOG = 2048
_LAST_ANSWERS = 2  # seconds for requests that are being answered when the server stops
_GLANCE = 0.005  # seconds between two looks at who is still there
_USUAL = Bounds()
_HINTS = {
    errno.EADDRINUSE: "Another program has the port; choose one with --port, or 0 for any free one.",
    errno.EACCES: "Ports below 1024 are root's; choose a higher one with --port.",
    errno.EADDRNOTAVAIL: "This machine does not have that address; choose another with --host.",
}


@asynccontextmanager
async def listening(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    max_frame_bytes: int | None = None,
    bounds: Bounds = _USUAL,
) -> AsyncGenerator[str, None]:
    """Serve until the context ends; gives the URL. Then: no new connections, a moment to finish.

    WebSockets are served with `max_frame_bytes` only. Compression is off: it would cost each of them
    more memory than everything else. So are uvicorn's pings: the gateway has one timer for all. Whose
    address a request has is believed of trusted proxies only.

    :raises StartupError: the address cannot be had
    """
    bound = _bind(host, port)
    server = _Server(
        uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            http=HttpConnection,
            timeout_keep_alive=IDLE_SECONDS,
            proxy_headers=bool(bounds.trusted),
            forwarded_allow_ips=[str(network) for network in bounds.trusted],
            ws="none" if max_frame_bytes is None else WebSocketConnection,
            ws_max_size=max_frame_bytes or 0,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
        ),
        Connections(bounds),
    )
    with closing(bound):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [bound])
            await server.accepting.wait()
            yield _url(bound)
            server.end()


class _Server(uvicorn.Server):
    """uvicorn's, which looks ten times a second whether it is to end; this one is told."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.server_state = connections
        self.accepting = anyio.Event()
        self._ending = anyio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # puts the new time into the header `date`
            with anyio.move_on_after(1):
                await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(_LAST_ANSWERS):
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's sets
                await anyio.sleep(_GLANCE)
        for task in self.server_state.tasks:
            task.cancel()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # signals are handled in one place for the whole process, `serve.main`


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartupError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint=_HINTS.get(error.errno or 0)
        ) from error
    # Accepted sockets inherit it: without it, a loop other than uvloop answers 40 ms late.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
