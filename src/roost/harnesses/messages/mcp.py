"""The MCP servers of an agent, asked by the session's own egress, which puts their tokens on.

The transport is Streamable HTTP. What a server says is another machine's word: it is bounded, and only shapes that
are known are passed on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import anyio
import httpx2
import msgspec

from roost import __version__
from roost.harnesses.messages.tools import ToolAnswer
from roost.harnesses.permissions import Json

_PROTOCOL: Final = "2025-06-18"
_LISTED_WITHIN: Final = 30.0
_CALLED_WITHIN: Final = 600.0
_MOST_PAGES: Final = 20
_MOST_TOOLS: Final = 500
_LARGEST: Final = 16 * 1024**2
_LONGEST_TEXT: Final = 100_000
_GONE: Final = 404
_NOT_ALLOWED: Final = 405
_ACCEPTED: Final = 202
_FIRST_ERROR: Final = 400
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


class McpFailed(Exception):
    """The server cannot be asked, or its answer makes no sense; the text says which."""


class McpClient:
    """One server. `url` is where it is found in the session's sandbox."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._session: str | None = None
        self._has_begun = False
        self._beginning = anyio.Lock()
        self._number = 0

    async def tools(self) -> list[Json]:
        """Its tools as a model is told of them; those with a name that no model may read are left out.

        :raises McpFailed: it cannot be asked
        """
        try:
            with anyio.fail_after(_LISTED_WITHIN):
                return await self._listed()
        except TimeoutError:
            raise McpFailed("it takes too long to answer") from None

    async def call(self, tool: str, given: Json) -> ToolAnswer:
        """Call a tool. What goes wrong is an answer, too: nobody knows whether it ran."""
        try:
            with anyio.fail_after(_CALLED_WITHIN):
                result = await self._asked("tools/call", {"name": tool, "arguments": given})
            return _answer(result)
        except TimeoutError:
            said = f"the server did not answer within {_CALLED_WITHIN:.0f} seconds"
        except McpFailed as failed:
            said = str(failed)
        return ToolAnswer.error(
            f"{tool}: {said}. Check whether it took effect before repeating it."
        )

    async def _listed(self) -> list[Json]:
        found: list[Json] = []
        cursor: Any = None
        for _ in range(_MOST_PAGES):
            result = await self._asked("tools/list", {} if cursor is None else {"cursor": cursor})
            tools = result.get("tools")
            listed = tools if isinstance(tools, list) else []
            found += [_tool(each) for each in listed if _is_tool(each)]
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or len(found) >= _MOST_TOOLS:
                break
        return found[:_MOST_TOOLS]

    async def _asked(self, method: str, params: Json) -> Json:
        """The result of a request. A server that has forgotten its session has not looked at it, and is asked
        again. :raises McpFailed:
        """
        await self._begun()
        try:
            return await self._sent(method, params)
        except _Forgotten:
            self._has_begun = False
            await self._begun()
        try:
            return await self._sent(method, params)
        except _Forgotten:
            raise McpFailed("it does not know its own session") from None

    async def _begun(self) -> None:
        async with self._beginning:
            if self._has_begun:
                return
            self._session = None
            about = {"name": "roost", "version": __version__}
            params = {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": about}
            try:
                await self._sent("initialize", params)
                await self._sent("notifications/initialized", None)
            except _Forgotten:
                raise McpFailed("there is no MCP server at its address (404)") from None
            self._has_begun = True

    async def _sent(self, method: str, params: Json | None) -> Json:
        """Send one message; gives the result, or nothing for a notification. :raises McpFailed: :raises _Forgotten:"""
        message: Json = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            self._number += 1
            message |= {"id": self._number, "params": params}
        try:
            async with aclosing(self._messages(message)) as messages:
                async for answer in messages:
                    if answer.get("id") == message.get("id") and "method" not in answer:
                        return _result(answer)
        except httpx2.HTTPError as error:
            raise McpFailed(f"it cannot be reached: {str(error) or type(error).__name__}") from None
        if params is None:
            return {}
        raise McpFailed(f"it has not answered {method}")

    async def _messages(self, message: Json) -> AsyncGenerator[Json, None]:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **({"mcp-protocol-version": _PROTOCOL} if self._has_begun else {}),
            **({"mcp-session-id": self._session} if self._session else {}),
        }
        body = msgspec.json.encode(message)
        timeout = httpx2.Timeout(30.0, read=_CALLED_WITHIN)
        async with self._client.stream(
            "POST", self._url, content=body, headers=headers, timeout=timeout
        ) as response:
            status = response.status_code
            is_first = message["method"] == "initialize"
            if status == _GONE and not is_first:
                raise _Forgotten
            if status in (_GONE, _NOT_ALLOWED) and is_first:
                raise McpFailed(f"it answered {status}; only Streamable HTTP is spoken, not SSE")
            if status >= _FIRST_ERROR:
                raise McpFailed(await _refusal(response))
            self._session = response.headers.get("mcp-session-id", self._session)
            if status == _ACCEPTED:
                return
            async for data in _bodies(response):
                yield _decoded(data)


class _Forgotten(Exception):
    """The server does not know the session that it was asked in."""


async def _bodies(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The messages in an answer: one, or as many as a stream has."""
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
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


def _result(answer: Json) -> Json:
    error, result = answer.get("error"), answer.get("result")
    if isinstance(error, dict):
        raise McpFailed(str(error.get("message") or "it refused")[:2000])
    if not isinstance(result, dict):
        raise McpFailed("its answer has no result")
    return result


def _is_tool(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and _NAME.fullmatch(tool["name"]) is not None
        and isinstance(tool.get("inputSchema"), dict)
    )


def _tool(tool: Json) -> Json:
    schema = {"type": "object", **tool["inputSchema"]}
    said = str(tool.get("description") or "")[:10_000]
    return {"name": tool["name"], "description": said, "input_schema": schema}


def _answer(result: Json) -> ToolAnswer:
    """A tool's result as a client and a model are shown it."""
    content = result.get("content")
    blocks = [_block(each) for each in content] if isinstance(content, list) else []
    if not blocks and "structuredContent" in result:
        text = msgspec.json.encode(result["structuredContent"]).decode()
        blocks = [{"type": "text", "text": text}]
    left = _LONGEST_TEXT
    for block in blocks:
        if block["type"] == "text":
            block["text"] = block["text"][: max(left, 0)] or "[left out: the result is too long]"
            left -= len(block["text"])
    is_error = result.get("isError") is True
    return ToolAnswer(blocks or [{"type": "text", "text": "(no output)"}], is_error)


def _block(block: Any) -> Json:
    block = block if isinstance(block, dict) else {}
    kind, data = str(block.get("type")), block.get("data")
    resource = block.get("resource")
    if kind == "text" and isinstance(block.get("text"), str):
        return _text(block["text"])
    if kind == "image" and block.get("mimeType") in _IMAGES and isinstance(data, str):
        source = {"type": "base64", "media_type": block["mimeType"], "data": data}
        return {"type": "image", "source": source}
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return _text(resource["text"])
    return _text(f"[{kind[:50]}: this agent cannot look at it]")


def _text(text: str) -> Json:
    text = text.replace("\0", "\ufffd")
    return {"type": "text", "text": text if text.strip() else "(no output)"}
