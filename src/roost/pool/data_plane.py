"""The operations below a pool's own path."""

from __future__ import annotations

import platform
import re
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api.framework.replies import reply
from roost.errors import InvalidRequest, MethodNotAllowed, NotFound
from roost.ids import mint
from roost.pool import files, mcp, shapes
from roost.pool.call import PoolCall, PoolError

UPLOADS: Final = ("files", "files/upload")
_OPERATION_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_LISTED: Final = 300
_MISSING: Final = "SessionWithIdentifierNotFound"


async def answered(pool_call: PoolCall) -> ASGIApp:
    """Carry out what is asked. :raises NotFound: there is no such operation :raises MethodNotAllowed:"""
    first, _, rest = pool_call.rest.partition("/")
    if first == "files":
        return await _files(pool_call, rest)
    if first == "executions" and rest:
        return await _status(pool_call, rest)
    operations = {
        "code/execute": ("POST", _execute),
        "executions": ("POST", _execute),
        "session": ("GET", _session),
        "listSessions": ("GET", _sessions),
        "metadata": ("GET", _metadata),
        ".management/getSession": ("POST", _session),
        ".management/listSessions": ("POST", _sessions),
        ".management/stopSession": ("POST", _stop),
        "mcp": ("POST", mcp.answered),
    }
    found = operations.get(pool_call.rest)
    if found is None:
        raise NotFound(f"there is nothing at {pool_call.rest[:200]}")
    method, operation = found
    if pool_call.rest == "session" and pool_call.method == "DELETE":
        return await _delete(pool_call)
    if pool_call.method != method:
        raise MethodNotAllowed(pool_call.method, [method])
    return await operation(pool_call)


async def _files(pool_call: PoolCall, rest: str) -> ASGIApp:
    method = pool_call.method
    if rest in ("", "upload") and method == "POST":
        return await files.uploaded(pool_call)
    if method == "GET":
        if not rest:
            return await files.listed(pool_call)
        if rest.startswith("content/"):
            return await files.downloaded(pool_call, rest.removeprefix("content/"))
        if rest.endswith("/content"):
            return await files.downloaded(pool_call, rest.removesuffix("/content"))
        return await files.described(pool_call, rest)
    if method == "DELETE" and rest:
        return await files.deleted(pool_call, rest)
    raise MethodNotAllowed(method, ["DELETE", "GET"] if rest else ["GET", "POST"])


async def _execute(pool_call: PoolCall) -> ASGIApp:
    execution_id = pool_call.call.headers.get("operation-id") or mint("exec")
    if not _OPERATION_ID.fullmatch(execution_id):
        raise InvalidRequest("operation-id: give 1 to 128 letters, digits, `-`, `_`, `.` and `:`")
    request, code, in_background = shapes.asked(pool_call.body, execution_id)
    session, executions = await pool_call.session(), pool_call.parts.executions
    at = await executions.begin(session, request, code)
    headers = {"operation-id": execution_id, "x-ms-session-guid": session.id}
    if in_background:
        pool_call.parts.counted(request.kind, "asynchronous")
        headers["operation-location"] = pool_call.url(f"executions/{execution_id}")
        told = shapes.flat(execution_id, pool_call.identifier, None, in_background=True)
        return _reply(told, headers, 202)
    pool_call.call.forget()  # the body need not be kept while it runs
    identifier = pool_call.identifier
    result = await executions.result(session.id, execution_id, at)
    pool_call.parts.counted(request.kind, result.status)
    if pool_call.rest == "code/execute":
        return _reply(shapes.wrapped(result), headers)
    return _reply(shapes.flat(execution_id, identifier, result, in_background=False), headers)


async def _status(pool_call: PoolCall, execution_id: str) -> ASGIApp:
    if pool_call.method != "GET":
        raise MethodNotAllowed(pool_call.method, ["GET"])
    if not _OPERATION_ID.fullmatch(execution_id):
        raise NotFound(f"execution {execution_id[:100]} was not found")
    session = await _known(pool_call)
    result = await pool_call.parts.executions.told(session, execution_id)
    told = shapes.flat(execution_id, pool_call.identifier, result, in_background=True)
    return _reply(told, {"operation-id": execution_id})


async def _known(pool_call: PoolCall) -> str:
    """The session of an identifier that is in use. :raises PoolError: it is not"""
    sessions, key = pool_call.parts.sessions, pool_call.call.key
    try:
        _, session = await sessions.found(key, pool_call.pool, pool_call.identifier)
    except NotFound as missing:
        raise PoolError(400, _MISSING, missing.message) from None
    return session.id


async def _session(pool_call: PoolCall) -> ASGIApp:
    sessions, key = pool_call.parts.sessions, pool_call.call.key
    try:
        record, _ = await sessions.found(key, pool_call.pool, pool_call.identifier)
    except NotFound as missing:
        raise PoolError(400, _MISSING, missing.message) from None
    return reply(shapes.session_of(pool_call.pool, record))


async def _sessions(pool_call: PoolCall) -> ASGIApp:
    skip = pool_call.one("skip") or "0"
    if not (skip.isascii() and skip.isdigit() and len(skip) < 9):
        raise InvalidRequest("skip: give a number")
    found = await pool_call.parts.sessions.page(pool_call.pool, int(skip), _LISTED)
    told = [shapes.session_of(pool_call.pool, record) for record in found]
    if pool_call.rest.startswith("."):
        return reply({"value": told, "count": len(told), "nextLink": None})
    return reply({"sessions": told, "nextLink": None})


async def _let_go(pool_call: PoolCall) -> None:
    try:
        await pool_call.parts.sessions.stop(
            pool_call.call.key, pool_call.pool, pool_call.identifier
        )
    except NotFound as missing:
        raise PoolError(400, _MISSING, missing.message) from None


async def _delete(pool_call: PoolCall) -> ASGIApp:
    await _let_go(pool_call)
    return Response(status_code=204)


async def _stop(pool_call: PoolCall) -> ASGIApp:
    await _let_go(pool_call)
    name = pool_call.pool.body["name"]
    said = f"Session {pool_call.identifier} in session pool {name} stopped."
    return Response(said, media_type="text/plain")


async def _metadata(pool_call: PoolCall) -> ASGIApp:
    return reply({"runtimes": [{"name": "python", "kernel": "roost"}], "host": platform.system()})


def _reply(value: object, headers: dict[str, str], status: int = 200) -> Response:
    response = reply(value, status)
    response.headers.update(headers)
    return response
