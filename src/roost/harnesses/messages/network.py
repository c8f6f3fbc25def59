"""HTTP by a session's own egress, from the server's process: as a program in its sandbox would ask.

So keys stay in the egress, requests are counted there, and the session's networking holds. The model is asked by a
call. Each request to anything else has a connection of its own, a pair of sockets whose other end the egress takes
over. Nothing is kept between two requests, and nothing is shared between two sessions.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpcore2
import httpx2

from roost.ports.egress import AskModel, ModelReply, OpenGrant
from roost.ports.sandbox_provider import Take

_HTTP: Final = 80


class EgressTransport(httpx2.AsyncBaseTransport):
    """Carries the requests of one session to the ports that its grant opens, and nowhere else."""

    def __init__(self, grant: OpenGrant) -> None:
        self._model = _port(httpx2.URL(grant.environ["ANTHROPIC_BASE_URL"]))
        self._ask = grant.ask_model
        takes = {each.port: each.take for each in grant.endpoints}
        self._pool = httpcore2.AsyncConnectionPool(
            network_backend=_Network(takes), max_connections=None, max_keepalive_connections=0
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if self._ask is not None and _port(url) == self._model:
            return await _asked(self._ask, request)
        where = httpcore2.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        asked = httpcore2.Request(
            request.method,
            where,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _explained():
            answer = await self._pool.handle_async_request(asked)
        return httpx2.Response(answer.status, headers=answer.headers, stream=_Body(answer))

    async def aclose(self) -> None:
        await self._pool.aclose()


def _port(url: httpx2.URL) -> int:
    return url.port or _HTTP


async def _asked(ask: AskModel, request: httpx2.Request) -> httpx2.Response:
    url, seconds = request.url, request.extensions["timeout"]["read"]
    with _explained(), anyio.fail_after(seconds):
        reply = await ask(request.method, url.raw_path, request.headers.raw, request.content)
    stream = _ReplyBody(reply, seconds)
    return httpx2.Response(reply.status, headers=list(reply.headers), stream=stream)


class _ReplyBody(httpx2.AsyncByteStream):
    """What the model answers. `seconds`: how long its next piece may take."""

    def __init__(self, reply: ModelReply, seconds: float | None) -> None:
        self._reply = reply
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._reply)
        while (data := await self._next(pieces)) is not None:
            yield data

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        with _explained(), anyio.fail_after(self._seconds):
            return await anext(pieces, None)

    async def aclose(self) -> None:
        await self._reply.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _explained():
            async for data in self._answer.aiter_stream():
                yield data

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._answer.aclose()


class _Network(httpcore2.AsyncNetworkBackend):
    def __init__(self, takes: Mapping[int | None, Take | None]) -> None:
        self._takes = takes

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        take = self._takes.get(port)
        if take is None:
            raise httpcore2.ConnectError(f"the session has no port {port}")
        ours, theirs = socket.socketpair()
        stream = _Stream(ours)
        try:
            await take(theirs)
        except BaseException:
            theirs.close()
            await stream.aclose()
            raise
        return stream


class _Stream(httpcore2.AsyncNetworkStream):
    """One end of a pair of sockets. Not anyio's own stream: see `egress/unix`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            with anyio.fail_after(timeout):
                while True:
                    try:
                        return self._socket.recv(max_bytes)
                    except BlockingIOError:
                        await anyio.wait_readable(self._socket)
        except TimeoutError:
            raise httpcore2.ReadTimeout from None
        except (OSError, anyio.ClosedResourceError):
            raise httpcore2.ReadError from None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        try:
            with anyio.fail_after(timeout):
                while left:
                    try:
                        left = left[self._socket.send(left) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._socket)
        except TimeoutError:
            raise httpcore2.WriteTimeout from None
        except (OSError, anyio.ClosedResourceError):
            raise httpcore2.WriteError from None

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        return None


@contextmanager
def _explained() -> Generator[None, None, None]:
    """The library's errors as those of the one above it. Their words may quote what was sent."""
    try:
        yield
    except (httpcore2.TimeoutException, TimeoutError):
        raise httpx2.ReadTimeout("it took too long") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError, ConnectionError):
        raise httpx2.NetworkError("the connection broke") from None


def session_client(grant: OpenGrant) -> httpx2.AsyncClient:
    """A client for the ports of one session."""
    return httpx2.AsyncClient(transport=EgressTransport(grant), trust_env=False)
