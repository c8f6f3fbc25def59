"""The connections of a server: how many there are, and how long one may say or take nothing.

uvicorn's HTTP protocol has no deadline for the head of a request, no bound on its size, on what is sent
ahead, or on answers that nobody reads, and none on connections. This adds them. It is built on uvicorn's
inside: the version is pinned, and tests hold it.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the types of uvicorn's protocols
import fcntl
import resource
import termios
from array import array
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from roost.api.access.login_attempts import group_of
from roost.api.framework.call import WHOLE_BODY
from roost.api.framework.errors import refusal
from roost.api.framework.replies import WHOLE_ANSWER
from roost.errors import (
    HeadTooLarge,
    InvalidRequest,
    RoostError,
    TooManyConnections,
    Unavailable,
)
from roost.ids import mint

Network = IPv4Network | IPv6Network

IDLE_SECONDS: Final = 5
"""For which a connection is kept without a request."""

MOST_FILES: Final = 65_536
_RESERVE: Final = 64  # connections beyond the most, that health checks are answered on
_LARGEST_HEAD: Final = 64 * 1024
_MOST_HEADERS: Final = 200
_MOST_AHEAD: Final = 16  # requests that a client sends before it has read the answers to others
_LEFTOVER_SECONDS: Final = 5.0  # for the rest of a body whose request is answered already
_LEAST_READ: Final = 64 * 1024  # bytes that a reader takes in `unread_seconds`, or is cut off
_HEALTH: Final = ("/healthz", "/readyz", "/metrics")


def raise_file_limit() -> int:
    """Let this process have as many open files as it may, within reason; gives how many.

    Not more: some programs look at each descriptor that they could have. Sandboxes get a limit of their
    own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_files()
    if 0 <= soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def most_files() -> int:
    """How many open files a server that starts here will have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft, MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What connections may cost. `connections` 0: three quarters of the open files there may be.

    `per_address` 0: half of them. Addresses in `trusted` are proxies: their connections are many clients'.
    """

    connections: int = 0
    per_address: int = 0
    head_seconds: float = 10.0
    unread_seconds: float = 60.0
    unread_bytes: int = 256 * 1024 * 1024
    trusted: tuple[Network, ...] = ()


class Connection(Protocol):
    """A connection, as it is counted here."""

    transport: asyncio.Transport
    client: tuple[str, int] | None


class Connections(ServerState):
    """Who is connected to one server, who of them says nothing, and who takes nothing.

    A connection that waits for a request gives way to a new one when there is no room: the oldest first.
    """

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = soft if 0 <= soft < MOST_FILES else MOST_FILES
        self.bounds = bounds
        self.most = bounds.connections or max(1, files * 3 // 4)
        self.per_address = bounds.per_address or max(1, self.most // 2)
        self._addresses: dict[Connection, str] = {}
        self._counts: dict[str, int] = {}
        self._silent: dict[Connection, None] = {}
        self._silent_of: dict[str, dict[Connection, None]] = {}
        self._unread: dict[Connection, int] = {}
        self._all_unread = 0
        self._headers_before: list[tuple[bytes, bytes]] = []
        self._first_lines = b""

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, connection: Connection) -> RoostError | None:
        """Count a connection; gives what all its requests are answered with, if there is no room."""
        address = self._address_of(connection)
        error: RoostError | None = None
        if address and self._counts.get(address, 0) >= self.per_address:
            if not self._drop_oldest(self._silent_of.get(address, {})):
                error = TooManyConnections()
        elif len(self) >= self.most and not self._drop_oldest(self._silent):
            error = Unavailable("this server has too many connections")
        if error is not None and len(self) >= self.most + _RESERVE:
            connection.transport.abort()
        self._addresses[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        return error

    def leave(self, connection: Connection) -> None:
        """It is gone, or soon will be. Saying it twice changes nothing."""
        self.emptied(connection)
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self.heard(connection, address)
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def pass_on(self, connection: Connection, heir: Connection) -> None:
        """The same connection is another object from now on."""
        address = self._addresses.get(connection)
        if address is not None:
            self.heard(connection, address)
            del self._addresses[connection]
            self._addresses[heir] = address

    def wait(self, connection: Connection) -> None:
        """It has said nothing that is not answered."""
        address = self._addresses.get(connection)
        if address is not None:
            self._silent[connection] = None
            self._silent_of.setdefault(address, {})[connection] = None

    def heard(self, connection: Connection, address: str | None = None) -> None:
        """It has asked for something."""
        if connection not in self._silent:
            return
        del self._silent[connection]
        address = self._addresses[connection] if address is None else address
        del self._silent_of[address][connection]
        if not self._silent_of[address]:
            del self._silent_of[address]

    def filled(self, connection: Connection) -> None:
        """It has more to read than it reads. When all have too much together, the most is dropped."""
        self.emptied(connection)
        self._unread[connection] = connection.transport.get_write_buffer_size()
        self._all_unread += self._unread[connection]
        if self._all_unread > self.bounds.unread_bytes:
            self._unread = {each: each.transport.get_write_buffer_size() for each in self._unread}
            self._all_unread = sum(self._unread.values())
        while self._all_unread > self.bounds.unread_bytes:
            self.drop(max(self._unread, key=self._unread.__getitem__))

    def emptied(self, connection: Connection) -> None:
        """It has read most of it."""
        self._all_unread -= self._unread.pop(connection, 0)

    def drop(self, connection: Connection) -> None:
        """Cut it off now."""
        self.leave(connection)
        connection.transport.abort()

    def first_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """How a good answer begins, with uvicorn's own headers: they are others when the date is, once a second."""
        if headers is not self._headers_before:
            lines = [b"%b: %b\r\n" % header for header in headers]
            self._headers_before, self._first_lines = headers, STATUS_LINE[200] + b"".join(lines)
        return self._first_lines

    def _drop_oldest(self, silent: dict[Connection, None]) -> bool:
        if not silent:
            return False
        self.drop(next(iter(silent)))
        return True

    def _address_of(self, connection: Connection) -> str:
        """Whose connections it is counted with; empty: nobody's, because it is a proxy's."""
        host = connection.client[0] if connection.client else ""
        try:
            address = ip_address(host)
        except ValueError:
            return ""
        trusted = any(address in network for network in self.bounds.trusted)
        return "" if trusted else group_of(host)


class CountedConnection(asyncio.Protocol):
    """A `Connection`, in front of one of uvicorn's protocols: counted until it is lost, with what it leaves unread."""

    transport: asyncio.Transport
    client: tuple[str, int] | None

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)  # type: ignore[call-arg]
        self.all_connections = server_state

    def connection_lost(self, exc: Exception | None) -> None:
        """It is not counted any more."""
        self.all_connections.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """What it leaves unread counts with that of all others."""
        super().pause_writing()
        self.all_connections.filled(self)

    def resume_writing(self) -> None:
        """It has read most of it."""
        super().resume_writing()
        self.all_connections.emptied(self)


class HttpConnection(CountedConnection, HttpToolsProtocol):
    """An HTTP connection that is held only as long as its client does its part."""

    _refusal: RoostError | None = None
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _idling: asyncio.TimerHandle | None = None
    _idle_since: float | None = None  # by the loop's clock; None while there is a request
    _head: int | None = 0  # bytes of a head so far; None while a body comes
    _answering: RequestResponseCycle | None = None  # the request whose turn it is

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head of the first request is waited for."""
        super().connection_made(transport)
        self._extensions: dict[str, Any] = {
            WHOLE_BODY: self._give_whole,
            WHOLE_ANSWER: self._answer_whole,
        }
        self._refusal = self.all_connections.enter(self)
        if self._refusal is not None:
            self.app = _Refusing(self.app, self._refusal)
        self.all_connections.wait(self)
        self._within(self.all_connections.bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._disarm()
        self._stop_reading()
        if self._idling is not None:
            self._idling.cancel()
        self._extensions.clear()  # else the connection would refer to itself, and be found late
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A head that has no end is refused."""
        if self.transport.is_closing():
            return
        self._idle_since = None
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head:  # begun and not ended: from its first byte on it has to arrive in time
            if self._head > _LARGEST_HEAD:
                self._refuse(HeadTooLarge(f"at most {_LARGEST_HEAD} bytes"))
            elif self._deadline is None and not self.transport.is_closing():
                self._within(self.all_connections.bounds.head_seconds)

    def on_message_begin(self) -> None:
        """A head has begun, also if it came along with the end of the last request."""
        super().on_message_begin()
        self._head = self._head or 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """There are not too many of them. All of uvicorn's is here: it is called for each."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > _MOST_HEADERS:
            self._refuse(HeadTooLarge(f"at most {_MOST_HEADERS} headers"))
            raise ValueError("too many headers")  # the parser goes no further

    def on_headers_complete(self) -> None:
        """The request begins. Its body's deadline is the application's, which asks for it."""
        if self._deadline is not None:
            self._disarm()
        self._head = None
        self.all_connections.heard(self)
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_AHEAD:
            self.all_connections.drop(self)
            raise ValueError("too many requests ahead")  # the parser goes no further

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """The application may take a body and give an answer whole."""
        self._answering = cycle
        cycle.scope["extensions"] = self._extensions
        super()._start_asgi_task(cycle, app)

    def _give_whole(self, scope: Scope) -> bytes | None:
        """As `receive` for a body that is here already; see `api.framework.call.GiveWhole`."""
        cycle = self._answering
        if cycle is None or cycle.scope is not scope or cycle.more_body or cycle.disconnected:
            return None
        self.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def _answer_whole(self, scope: Scope, head: bytes, body: bytes) -> bool:
        """As `send` for both messages of an answer, with one write; see `api.framework.replies.TakeWhole`."""
        cycle = self._answering
        if cycle is None or cycle.scope is not scope:
            return False
        ended = cycle.disconnected or cycle.response_started or not cycle.keep_alive
        if ended or cycle.flow.write_paused or scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        first = self.all_connections.first_lines(cycle.default_headers)
        self.transport.write(b"".join((first, head, body)))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_message_complete(self) -> None:
        """What comes next is another head."""
        self._head = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next request has its turn, or a body is left that nobody reads, or it is kept for another request.

        All of uvicorn's is here but its timer, which it would make and cancel for each request.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._head is None:
            self._within(_LEFTOVER_SECONDS)
        else:
            self.all_connections.wait(self)
            self._idle_since = self.loop.time()
            if self._idling is None:
                self._idling = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """One timer serves all the requests of some seconds: it looks when the last one was."""
        self._idling = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idling = self.loop.call_later(left, self._close_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def handle_websocket_upgrade(self) -> None:
        """It is counted where it was."""
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        super().handle_websocket_upgrade()
        heir: Any = self.transport.get_protocol()
        self.all_connections.pass_on(self, heir)

    def send_400_response(self, msg: str) -> None:
        """In the words of the API."""
        self._refuse(InvalidRequest(msg))

    def pause_writing(self) -> None:
        """From here on the client has to read."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """The client has read most of what was waiting for it."""
        super().resume_writing()
        self._stop_reading()

    def _refuse(self, error: RoostError) -> None:
        if self.transport.is_closing():
            return
        if not self._is_answering():
            self.transport.write(answer(error))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is not None and not cycle.response_complete

    def _within(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._too_late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._is_answering():
            # Half a request has come ahead of its turn.
            self._within(self.all_connections.bounds.head_seconds)
        elif not self.transport.is_closing():
            self.all_connections.drop(self)

    def _look_later(self) -> None:
        self._stop_reading()
        seconds = self.all_connections.bounds.unread_seconds
        self._reading = self.loop.call_later(seconds, self._look, self._unread())

    def _look(self, before: int) -> None:
        if before - self._unread() < _LEAST_READ:
            self.all_connections.drop(self)
        else:
            self._look_later()

    def _unread(self) -> int:
        """What the client has not acknowledged. The kernel has megabytes of it, and asks for more late."""
        size = array("i", [0])
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket"), termios.TIOCOUTQ, size)
        return size[0] + self.transport.get_write_buffer_size()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


class _Refusing:
    """Answers health checks, and nothing else."""

    def __init__(self, app: Any, error: RoostError) -> None:
        self._app: ASGIApp = app
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        response = refusal(self._error, mint("req"))
        response.headers["connection"] = "close"
        await response(scope, receive, send)


def answer(error: RoostError) -> bytes:
    """An error as bytes, for a request that never became one."""
    response = refusal(error, mint("req"))
    headers = [*response.raw_headers, (b"connection", b"close")]
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return b"HTTP/1.1 %d \r\n%b\r\n%b" % (response.status_code, lines, bytes(response.body))
