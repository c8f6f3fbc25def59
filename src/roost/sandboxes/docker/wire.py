"""HTTP/1.1 to an engine's unix socket, up to the point where the engine turns it into a raw stream.

One connection per request: on a unix socket that costs less than keeping them would. Not anyio's own
unix sockets, which are not made for uvloop: a socket may be announced as ready once more after it was
waited for, and their future for it is then resolved twice.
"""

from __future__ import annotations

import io
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import h11
import msgspec

from roost.errors import SandboxUnavailable

_SECONDS: Final = 60.0
_CHUNK: Final = 65536
_SAID_KEPT: Final = 500
_TAR: Final = "application/x-tar"
_Part = h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
_HINT: Final = "Start the Docker engine, or say where its socket is with ROOST_DOCKER_SOCKET."


class EngineRefused(Exception):
    """The engine answered, and said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineStream:
    """A connection to the engine that carries bytes both ways."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._early = b""

    def push_back(self, data: bytes) -> None:
        """What came together with the answer belongs to the stream."""
        self._early = data

    async def receive(self, limit: int = _CHUNK) -> bytes:
        """Some bytes; empty at the end, however it ended."""
        await anyio.lowlevel.checkpoint()
        if self._early:
            data, self._early = self._early[:limit], self._early[limit:]
            return data
        while True:
            try:
                return self._socket.recv(limit)
            except BlockingIOError:
                with suppress(anyio.ClosedResourceError):  # the next look finds it closed
                    await anyio.wait_readable(self._socket)
            except OSError:
                return b""

    async def send(self, data: bytes) -> None:
        """All of the bytes. :raises OSError: the engine has hung up"""
        await anyio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                with suppress(anyio.ClosedResourceError):  # the next try finds it closed
                    await anyio.wait_writable(self._socket)

    def end_output(self) -> None:
        """Tell the other side that no more bytes come from here."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it, also for whoever waits for it in another task."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


async def ask(
    path: Path, method: str, target: str, body: Any = None, *, seconds: float = _SECONDS
) -> Any:
    """An ordinary request. `body` is sent as JSON, bytes as they are; the answer is JSON, or None.

    :raises EngineRefused: the engine says no
    :raises SandboxUnavailable: the engine does not answer
    """
    stream, _, answer = await _exchange(path, method, target, body, seconds)
    stream.close()
    return msgspec.json.decode(answer) if answer.strip() else None


async def fetch(path: Path, target: str) -> bytes:
    """What the engine has there, as it is.

    :raises EngineRefused: the engine says no
    :raises SandboxUnavailable: the engine does not answer
    """
    stream, _, answer = await _exchange(path, "GET", target, None, _SECONDS)
    stream.close()
    return answer


async def hijack(path: Path, target: str, body: Any = None) -> EngineStream:
    """A request that the engine answers with a raw stream, both ways. Close it.

    :raises EngineRefused: the engine says no
    :raises SandboxUnavailable: the engine does not answer
    """
    stream, http, _ = await _exchange(path, "POST", target, body, _SECONDS, upgrade=True)
    stream.push_back(http.trailing_data[0])
    return stream


async def relay(
    path: Path, target: str, body: bytes | Path = b""
) -> AsyncGenerator[dict[str, Any], None]:
    """What the engine says of a long piece of work, while it does it. `body` is a tar file.

    Give it up by closing: engines stop when nobody listens any more.

    :raises EngineRefused: the engine says no, or that it failed
    :raises SandboxUnavailable: the engine does not answer
    """
    stream = await _connect(path)
    try:
        http = h11.Connection(h11.CLIENT)
        await _put(http, stream, target, body)
        async for line in _lines(http, stream):
            said = msgspec.json.decode(line) if line.strip() else {}
            if "error" in said:
                raise EngineRefused(500, str(said["error"])[:_SAID_KEPT])
            yield said
    except (OSError, h11.RemoteProtocolError) as error:
        raise SandboxUnavailable(f"the engine does not answer: {error}", hint=_HINT) from error
    finally:
        stream.close()


async def _put(http: h11.Connection, stream: EngineStream, target: str, body: bytes | Path) -> None:
    opened = io.BytesIO(body) if isinstance(body, bytes) else body.open("rb")
    async with anyio.wrap_file(opened) as file:
        size = await file.seek(0, io.SEEK_END)
        await file.seek(0)
        headers = [("Host", "engine"), ("Content-Length", str(size)), ("Content-Type", _TAR)]
        request = h11.Request(method="POST", target=target, headers=headers)
        with suppress(ConnectionError):  # it says no before it has read all: the answer tells why
            await stream.send(http.send(request) or b"")
            while chunk := await file.read(_CHUNK):
                await stream.send(http.send(h11.Data(data=chunk)) or b"")
            await stream.send(http.send(h11.EndOfMessage()) or b"")


async def _lines(http: h11.Connection, stream: EngineStream) -> AsyncGenerator[bytes, None]:
    """The lines of an answer, as they come."""
    status, held = 0, b""
    while not isinstance(event := await _next(http, stream), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            held += event.data
            while status < 400 and b"\n" in held:
                line, _, held = held.partition(b"\n")
                yield line
        else:
            status = event.status_code
    if status >= 400:
        raise EngineRefused(status, _said(held))
    yield held


async def _exchange(
    path: Path, method: str, target: str, body: Any, seconds: float, *, upgrade: bool = False
) -> tuple[EngineStream, h11.Connection, bytes]:
    stream = await _connect(path)
    try:
        with anyio.fail_after(seconds):
            http = h11.Connection(h11.CLIENT)
            await stream.send(_request(http, method, target, body, upgrade=upgrade))
            status, answer = await _answer(http, stream)
        if status >= 400:
            raise EngineRefused(status, _said(answer))
        if upgrade and http.their_state is not h11.SWITCHED_PROTOCOL:
            raise EngineRefused(status, "the engine does not turn the connection into a stream")
    except (OSError, h11.RemoteProtocolError) as error:  # a timeout is an OSError too
        stream.close()
        raise SandboxUnavailable(f"the engine does not answer: {error}", hint=_HINT) from error
    except BaseException:
        stream.close()
        raise
    return stream, http, answer


async def _connect(path: Path) -> EngineStream:
    connected = socket.socket(socket.AF_UNIX)
    connected.setblocking(False)
    try:
        while True:
            try:
                connected.connect(str(path))
                return EngineStream(connected)
            except BlockingIOError:  # too many at once
                await anyio.sleep(0.01)
    except OSError as error:
        connected.close()
        why = error.strerror or error
        raise SandboxUnavailable(f"no engine at {path}: {why}", hint=_HINT) from error
    except BaseException:
        connected.close()
        raise


def _request(http: h11.Connection, method: str, target: str, body: Any, *, upgrade: bool) -> bytes:
    raw = isinstance(body, bytes)
    data = body if raw else b"" if body is None else msgspec.json.encode(body)
    kind = _TAR if raw else "application/json"
    headers = [("Host", "engine"), ("Content-Length", str(len(data))), ("Content-Type", kind)]
    headers += [("Connection", "Upgrade"), ("Upgrade", "tcp")] if upgrade else []
    events = [h11.Request(method=method, target=target, headers=headers), h11.Data(data=data)]
    return b"".join(http.send(event) or b"" for event in [*events, h11.EndOfMessage()])


async def _answer(http: h11.Connection, stream: EngineStream) -> tuple[int, bytes]:
    status, answer = 0, bytearray()
    while not isinstance(event := await _next(http, stream), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            answer += event.data
        else:
            status = event.status_code
            if status == 101:
                break
    return status, bytes(answer)


async def _next(http: h11.Connection, stream: EngineStream) -> _Part:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.receive())
    if not isinstance(event, _Part):
        raise h11.RemoteProtocolError("it hung up")
    return event


def _said(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["message"])[:_SAID_KEPT]
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer[:_SAID_KEPT].decode(errors="replace")
