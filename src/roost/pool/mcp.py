"""A pool as a server of the Model Context Protocol, for agents: streamable HTTP, one answer to each request.

It keeps nothing between requests. An agent names the session that it works in; each key has one that is used where
none is named.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp

from roost import __version__
from roost.api.framework.replies import reply
from roost.domain.session import Session
from roost.errors import RoostError
from roost.ids import mint
from roost.pool import shapes
from roost.pool.call import PoolCall, PoolError
from roost.pool.files import path_in

Json = dict[str, Any]

_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
_LARGEST: Final = 8 * 1024 * 1024
_SESSION: Final = {
    "type": "string",
    "description": "Which session to work in; without, one that this client always gets.",
}


def _tool(name: str, /, description: str, required: list[str], **properties: Any) -> Json:
    schema = {
        "type": "object",
        "properties": {**properties, "session": _SESSION},
        "required": required,
    }
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS: Final = [
    _tool(
        "run_code",
        "Run Python in a session that keeps its variables. The answer has its output and the value of the last "
        "expression. Files are in /mnt/data.",
        ["code"],
        code={"type": "string", "description": "The Python code."},
        timeout_seconds={"type": "number", "description": "At most 220; 120 if left out."},
    ),
    _tool(
        "upload",
        "Write a file into the session's /mnt/data.",
        ["name"],
        name={"type": "string", "description": "Its path below /mnt/data."},
        text={"type": "string", "description": "What is in it, as text."},
        base64={"type": "string", "description": "What is in it, in base64, instead of text."},
    ),
    _tool(
        "download",
        "Read a file of the session's /mnt/data.",
        ["name"],
        name={"type": "string", "description": "Its path below /mnt/data."},
    ),
]


class _Refused(Exception):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answered(pool_call: PoolCall) -> ASGIApp:
    """Answer one message. A notification needs no answer."""
    message = pool_call.body
    if "method" not in message or message.get("jsonrpc") != "2.0":
        return _error(message.get("id"), -32600, "this is no JSON-RPC request")
    if "id" not in message:
        return Response(status_code=202)
    try:
        result = await _result(pool_call, str(message["method"]), message.get("params") or {})
    except _Refused as refused:
        return _error(message["id"], refused.code, str(refused))
    return reply({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _error(message_id: object, code: int, message: str) -> Response:
    return reply({"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": message}})


async def _result(pool_call: PoolCall, method: str, params: Json) -> Json:
    if not isinstance(params, dict):
        raise _Refused(-32602, "params: not an object")
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "roost-pool", "version": __version__},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return await _called(pool_call, params)
    raise _Refused(-32601, f"{method[:80]} is not served")


_Tool = Callable[[PoolCall, Session, Json], Awaitable[Json]]


async def _called(pool_call: PoolCall, params: Json) -> Json:
    tools: dict[str, _Tool] = {"run_code": _run, "upload": _upload, "download": _download}
    tool = tools.get(str(params.get("name")))
    given = params.get("arguments") or {}
    if tool is None or not isinstance(given, dict):
        raise _Refused(-32602, "there is no such tool; tools/list names them")
    key = pool_call.call.key
    identifier = given.get("session") or f"mcp-{key.id}"
    try:
        if not isinstance(identifier, str):
            raise PoolError(400, "", "session: give a text")
        _, session = await pool_call.parts.sessions.opened(key, pool_call.pool, identifier)
        return await tool(pool_call, session, given)
    except (RoostError, PoolError) as error:
        return _text(error.message, is_error=True)


async def _run(pool_call: PoolCall, session: Session, given: Json) -> Json:
    seconds = given.get("timeout_seconds")
    limit = {} if seconds is None else {"timeoutInSeconds": seconds}
    execution_id = mint("exec")
    request, code, _ = shapes.asked({"code": given.get("code"), **limit}, execution_id)
    executions = pool_call.parts.executions
    at = await executions.begin(session, request, code)
    result = await executions.result(session.id, execution_id, at)
    pool_call.parts.counted(request.kind, result.status)
    content = [{"type": "text", "text": text} for text in (result.stdout, result.stderr) if text]
    content += [
        {"type": "image", "mimeType": f"image/{image.format}", "data": image.base64_data}
        for image in result.images
    ]
    value = None if result.value is None else result.value.value
    if value is not None:
        content.append({"type": "text", "text": str(value)})
    told = shapes.wrapped(result)["properties"]
    structured = {**told, "result": value}  # images are content already
    is_error = result.status != "ok"
    return {
        "content": content or [{"type": "text", "text": "(no output)"}],
        "structuredContent": structured,
        "isError": is_error,
    }


async def _upload(pool_call: PoolCall, session: Session, given: Json) -> Json:
    text, encoded = given.get("text"), given.get("base64")
    if isinstance(text, str) == isinstance(encoded, str):
        return _text("give one of `text` and `base64`", is_error=True)
    try:
        data = (
            text.encode()
            if isinstance(text, str)
            else base64.b64decode(str(encoded), validate=True)
        )
    except (binascii.Error, ValueError):
        return _text("base64: it is none", is_error=True)
    name = _named(given)
    [made] = await pool_call.parts.browse.put(session, [(name, io.BytesIO(data))], overwrite=True)
    return _text(f"wrote {made.size} bytes to /mnt/data/{name}")


async def _download(pool_call: PoolCall, session: Session, given: Json) -> Json:
    name = _named(given)
    content = await pool_call.parts.browse.open(session, name)
    try:
        if content.item.size > _LARGEST:
            return _text(f"{name} has {content.item.size} bytes, which is too much", is_error=True)
        data = content.read(0, content.item.size)
    finally:
        content.close()
    try:
        return _text(data.decode())
    except UnicodeDecodeError:
        resource = {"uri": f"file:///mnt/data/{name}", "blob": base64.b64encode(data).decode()}
        return {"content": [{"type": "resource", "resource": resource}], "isError": False}


def _named(given: Json) -> str:
    name = given.get("name")
    path = path_in(name) if isinstance(name, str) else ""
    if not path:
        raise PoolError(400, "", "name: give the path of a file")
    return path


def _text(text: str, *, is_error: bool = False) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}
