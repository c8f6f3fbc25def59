"""The MCP servers of an agent, asked by the session's own egress, which puts their tokens on.

How messages get there is in `mcp_transports`. What a server says is another machine's word: it is bounded, and only shapes that
are known are passed on.
"""

from __future__ import annotations

import re
from typing import Any, Final

import anyio
import httpx2
import msgspec
from anyio.abc import TaskGroup

from roost import __version__
from roost.harnesses.messages.mcp_transports import (
    CALLED_WITHIN,
    PROTOCOL,
    McpFailed,
    McpTransport,
    NotSpoken,
    SessionForgotten,
    SseStream,
    StreamableHttp,
)
from roost.harnesses.messages.tools import ToolAnswer
from roost.harnesses.permissions import Json

_LISTED_WITHIN: Final = 30.0
_MOST_PAGES: Final = 20
_MOST_TOOLS: Final = 500
_LONGEST_TEXT: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")


class McpClient:
    """One server. `url` is where it is found in the session's sandbox; a stream of it is read in the task group."""

    def __init__(self, client: httpx2.AsyncClient, url: str, tasks: TaskGroup) -> None:
        self._client = client
        self._url = url
        self._tasks = tasks
        self._session: McpTransport | None = None
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
            with anyio.fail_after(CALLED_WITHIN):
                result = await self._asked("tools/call", {"name": tool, "arguments": given})
            return _answer(result)
        except TimeoutError:
            said = f"the server did not answer within {CALLED_WITHIN:.0f} seconds"
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
        session = await self._begun()
        try:
            return await self._sent(session, method, params)
        except SessionForgotten:
            session.close()
            if self._session is session:
                self._session = None
        try:
            return await self._sent(await self._begun(), method, params)
        except SessionForgotten:
            raise McpFailed("it does not know its own session") from None

    async def _begun(self) -> McpTransport:
        """The session that there is, or a new one. :raises McpFailed:"""
        async with self._beginning:
            if self._session is None or not self._session.is_open:
                self._session = await self._opened()
            return self._session

    async def _opened(self) -> McpTransport:
        """A session by the transport that the server speaks."""
        newer = StreamableHttp(self._client, self._url)
        try:
            await self._introduce(newer)
        except NotSpoken as refused:
            older = SseStream(self._client, self._url)
            try:
                await older.open(self._tasks)
            except NotSpoken:
                raise refused from None  # neither
            await self._introduce(older)
            return older
        return newer

    async def _introduce(self, session: McpTransport) -> None:
        about = {"name": "roost", "version": __version__}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        try:
            await self._sent(session, "initialize", params)
            await self._sent(session, "notifications/initialized", None)
        except SessionForgotten:
            session.close()
            raise McpFailed("it does not know its own session") from None
        except BaseException:
            session.close()
            raise

    async def _sent(self, session: McpTransport, method: str, params: Json | None) -> Json:
        """Send one message; gives the result, or nothing for a notification.

        :raises McpFailed: :raises SessionForgotten:
        """
        message: Json = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            self._number += 1
            message |= {"id": self._number, "params": params}
        try:
            answer = await session.send(message)
        except httpx2.HTTPError as error:
            raise McpFailed(f"it cannot be reached: {str(error) or type(error).__name__}") from None
        return {} if params is None else _result(answer)


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
