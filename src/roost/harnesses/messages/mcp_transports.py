"""How messages get to an MCP server and its answers back: by Streamable HTTP, or by the older transport, HTTP with SSE.

One of these is one session with the server. What a server says is another machine's word: it is bounded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Protocol

import anyio
import httpx2
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from roost.harnesses.permissions import Json

PROTOCOL: Final = "2025-06-18"
CALLED_WITHIN: Final = 600.0

_OPENS_WITHIN: Final = 30.0
_LARGEST: Final = 16 * 1024**2
_ACCEPTED: Final = 202
_FIRST_ERROR: Final = 400
_GONE: Final = 404
_NOT_SPOKEN: Final = (400, 404, 405)
"""What servers of the older transport answer to the newer one."""


class McpFailed(Exception):
    """The server cannot be asked, or its answer makes no sense; the text says which."""


class NotSpoken(McpFailed):
    """There is no server at the address that speaks this transport."""


class SessionForgotten(Exception):
    """The server does not know the session that it was asked in, so it has not looked at the message."""


class McpTransport(Protocol):
    """One session with a server."""

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent, as far as is known."""
        ...

    async def send(self, message: Json) -> Json:
        """Send a message; gives its answer, or nothing if it has no id.

        :raises McpFailed: :raises SessionForgotten: :raises httpx2.HTTPError: there is no connection
        """
        ...

    def close(self) -> None:
        """End the session on this side."""
        ...


class StreamableHttp:
    """Each message is a request, and its answer comes back in the response."""

    is_open = True

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._session: str | None = None

    async def send(self, message: Json) -> Json:
        async with aclosing(self._messages(message)) as messages:
            async for answer in messages:
                if "id" in message and _answers(answer, message["id"]):
                    return answer
        if "id" not in message:
            return {}
        raise McpFailed(f"it has not answered {message['method']}")

    def close(self) -> None:
        self._session = None

    async def _messages(self, message: Json) -> AsyncGenerator[Json, None]:
        is_first = message["method"] == "initialize"
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **({} if is_first else {"mcp-protocol-version": PROTOCOL}),
            **({"mcp-session-id": self._session} if self._session else {}),
        }
        body = msgspec.json.encode(message)
        timeout = httpx2.Timeout(30.0, read=CALLED_WITHIN)
        async with self._client.stream(
            "POST", self._url, content=body, headers=headers, timeout=timeout
        ) as response:
            status = response.status_code
            if status in _NOT_SPOKEN and is_first:
                raise NotSpoken(await _refusal(response))
            if status == _GONE:
                raise SessionForgotten
            if status >= _FIRST_ERROR:
                raise McpFailed(await _refusal(response))
            self._session = response.headers.get("mcp-session-id", self._session)
            if status == _ACCEPTED:
                return
            async for data in _bodies(response):
                yield _decoded(data)


class _Awaited:
    """A message that was sent, and its answer."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: Json | None = None


class SseStream:
    """Messages are requests to an address that the server names, and all answers come in one stream. The session
    is as old as the stream: what has no answer when it ends never gets one.
    """

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._endpoint: str | None = None
        self._awaited: dict[int, _Awaited] = {}
        self._reading = anyio.CancelScope()

    @property
    def is_open(self) -> bool:
        return self._endpoint is not None

    async def open(self, tasks: TaskGroup) -> None:
        """Have the stream, which is read in this task group. :raises McpFailed: there is none"""
        try:
            with anyio.fail_after(_OPENS_WITHIN):
                failed = await tasks.start(self._read)
        except TimeoutError:
            raise McpFailed("it takes too long to answer") from None
        if failed is not None:
            raise failed

    async def send(self, message: Json) -> Json:
        endpoint, number = self._endpoint, message.get("id")
        if endpoint is None:
            raise SessionForgotten
        awaited = _Awaited()
        if isinstance(number, int):
            self._awaited[number] = awaited
        try:
            await self._post(endpoint, message)
            if number is None:
                return {}
            await awaited.done.wait()
        finally:
            if isinstance(number, int):
                self._awaited.pop(number, None)
        if awaited.answer is None:
            raise McpFailed("its stream ended before it answered")
        return awaited.answer

    def close(self) -> None:
        self._reading.cancel()

    async def _post(self, endpoint: str, message: Json) -> None:
        headers = {"content-type": "application/json"}
        body = msgspec.json.encode(message)
        async with self._client.stream(
            "POST", endpoint, content=body, headers=headers, timeout=httpx2.Timeout(30.0)
        ) as response:
            if response.status_code == _GONE:
                raise SessionForgotten
            if response.status_code >= _FIRST_ERROR:
                raise McpFailed(await _refusal(response))

    async def _read(self, *, task_status: TaskStatus[Exception | None]) -> None:
        """Read the stream until it ends. One that is none is given back: raised, it would end the conversation."""
        failed: Exception = NotSpoken("it names no address for messages")
        has_begun = False
        with self._reading:
            try:
                async with aclosing(self._events()) as events:
                    async for event in events:
                        if event.event == "endpoint" and not has_begun:
                            self._endpoint = str(httpx2.URL(self._url).join(event.data.strip()))
                            has_begun = True
                            task_status.started(None)
                        elif event.data and has_begun:
                            await self._take(_decoded(event.data.encode()))
            except McpFailed as error:
                failed = error
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failed = McpFailed(f"it cannot be reached: {str(error) or type(error).__name__}")
            finally:
                self._endpoint = None
                for awaited in self._awaited.values():
                    awaited.done.set()
        if not has_begun:
            task_status.started(failed)

    async def _events(self) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        headers = {"accept": "text/event-stream"}
        timeout = httpx2.Timeout(30.0, read=None)  # nothing may be said for hours
        async with self._client.stream(
            "GET", self._url, headers=headers, timeout=timeout
        ) as response:
            if response.status_code != 200 or not _is_stream(response):
                raise NotSpoken(await _refusal(response))
            async for event in httpx2.EventSource(response, max_event_size=_LARGEST):
                yield event

    async def _take(self, message: Json) -> None:
        number = message.get("id")
        awaited = self._awaited.get(number) if isinstance(number, int) else None
        if awaited is not None and _answers(message, number):
            awaited.answer = message
            awaited.done.set()
        elif message.get("method") == "ping" and self._endpoint is not None:
            try:
                await self._post(self._endpoint, {"jsonrpc": "2.0", "id": number, "result": {}})
            except SessionForgotten:
                raise McpFailed("it does not know its own session") from None


def _answers(message: Json, number: object) -> bool:
    return message.get("id") == number and "method" not in message


def _is_stream(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-type", "").lower().startswith("text/event-stream"))


async def _bodies(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The messages in an answer: one, or as many as a stream has."""
    if _is_stream(response):
        async for event in httpx2.EventSource(response, max_event_size=_LARGEST):
            if event.data:
                yield event.data.encode()
        return
    raw = bytearray()
    async for chunk in response.aiter_bytes():
        raw += chunk
        if len(raw) > _LARGEST:
            raise McpFailed("its answer is too large")
    if raw:
        yield bytes(raw)


async def _refusal(response: httpx2.Response) -> str:
    raw = bytearray()
    if not _is_stream(response):
        async for chunk in response.aiter_bytes():
            raw += chunk
            if len(raw) > 500:
                break
    return f"it answered {response.status_code}: {raw[:500].decode(errors='replace')}"


def _decoded(data: bytes) -> Json:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        raise McpFailed("its answer is not JSON") from None
