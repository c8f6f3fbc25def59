"""What executions, files and sessions look like in both generations of the API."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import Any, Final

import msgspec

from roost.domain.events import iso
from roost.domain.execution import (
    MOST_OUTPUT,
    MOST_SECONDS,
    USUAL_SECONDS,
    ExecutionRequest,
    ExecutionResult,
)
from roost.errors import InvalidRequest
from roost.pool.call import PoolError
from roost.ports.catalog import Record
from roost.ports.folder import Item

Json = dict[str, Any]

_INPUTS: Final = ("inline", "inlinetext", "inlinebase64")
_SHELL_SECONDS: Final = 180.0


def asked(body: Json, execution_id: str) -> tuple[ExecutionRequest, str, bool]:
    """What a body asks for, flat or wrapped: the request, its code, and whether to answer before it is over.

    :raises InvalidRequest: :raises PoolError: there is no code in it
    """
    fields = body.get("properties") if isinstance(body.get("properties"), dict) else body
    assert isinstance(fields, dict)
    how = str(fields.get("executionType") or "synchronous").lower()
    if how not in ("synchronous", "asynchronous"):
        raise InvalidRequest("executionType: give `synchronous` or `asynchronous`")
    kind, code, argv = _code(fields)
    usual = USUAL_SECONDS if kind == "python" else _SHELL_SECONDS
    given: Json = {
        "id": execution_id,
        "kind": kind,
        "argv": argv,
        "seconds": _number(fields, "timeoutInSeconds", usual, MOST_SECONDS),
        "most": int(_number(fields, "outputStreamsMaxLength", MOST_OUTPUT, MOST_OUTPUT)),
    }
    return msgspec.convert(given, ExecutionRequest), code, how == "asynchronous"


def _code(fields: Json) -> tuple[str, str, list[str]]:
    command, argv, code = (
        fields.get(name) for name in ("shellCommand", "execCommandAndArgs", "code")
    )
    if sum(each is not None for each in (command, argv, code)) > 1:
        raise InvalidRequest("give one of `code`, `shellCommand` and `execCommandAndArgs`")
    if isinstance(command, str) and command:
        return "shell", command, []
    if isinstance(argv, list) and argv and all(isinstance(each, str) for each in argv):
        return "exec", " ".join(argv), argv
    if not isinstance(code, str):
        raise PoolError(
            400,
            "SessionPropertiesMissing",
            "the body has no `code`, `shellCommand` or `properties`",
        )
    given = str(fields.get("codeInputType") or "inline").lower()
    if given not in _INPUTS:
        raise InvalidRequest("codeInputType: give `inline`, `inlineText` or `inlineBase64`")
    return "python", _decoded(code) if given == "inlinebase64" else code, []


def _decoded(code: str) -> str:
    try:
        return base64.b64decode(code, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("code: it is not text in base64") from None


def _number(fields: Json, name: str, usual: float, most: float) -> float:
    value = fields.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise InvalidRequest(f"{name}: give a number above 0, at most {most:g}")
    return value


def value_of(result: ExecutionResult, nothing: str | None) -> Any:
    """What is told as the result: the last image, else the value; `nothing` for None."""
    if result.images:
        image = result.images[-1]
        return {"type": "image", "format": image.format, "base64_data": image.base64_data}
    if result.value is None:
        return ""
    return nothing if result.value.value is None else result.value.value


def wrapped(result: ExecutionResult) -> Json:
    """A result as `code/execute` answers it."""
    told: Json = {
        "status": "Success" if result.status == "ok" else "Failure",
        "stdout": result.stdout,
        "stderr": result.stderr,
        "result": value_of(result, ""),
        "executionTimeInMilliseconds": round(result.seconds * 1000),
    }
    return {"properties": {**told, **_more(result)}}


def flat(
    execution_id: str, identifier: str, result: ExecutionResult | None, *, in_background: bool
) -> Json:
    """A result as `executions` answers it; None: it is not over."""
    how = "asynchronous" if in_background else "synchronous"
    head = {"id": execution_id, "identifier": identifier, "executionType": how}
    if result is None:
        return {**head, "status": "Running", "result": None}
    told: Json = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "executionResult": value_of(result, None),
        "executionTimeInMilliseconds": round(result.seconds * 1000),
    }
    return {
        **head,
        "status": _status(result),
        "result": {**told, **_more(result)},
        **_error(result),
    }


def _status(result: ExecutionResult) -> str:
    if result.kind != "python" and result.exit_code is not None:
        return str(result.exit_code)  # clients read it as a number
    words = {"ok": "Succeeded", "stopped": "Canceled"}
    return words.get(result.status, "Failed")


def _error(result: ExecutionResult) -> Json:
    if result.error is None:
        return {}
    return {"error": {"code": result.error.name, "message": result.error.message}}


def _more(result: ExecutionResult) -> Json:
    """What that API has no words for: which streams were cut, and that variables are lost."""
    told: Json = {}
    if result.cut:
        told["truncated"] = list(result.cut)
    if result.lost or result.restarted:
        told["stateLost"] = True
    return told


def file_of(item: Item, *, is_flat: bool) -> Json:
    """A file or directory, as listings and uploads tell it."""
    path = item.path or item.name
    if not is_flat:
        moment = iso(item.modified_at)
        return {"properties": {"filename": path, "size": item.size, "lastModifiedTime": moment}}
    folder, _, name = path.rpartition("/")
    is_file = item.kind != "directory"
    return {
        "name": name,
        "type": "file" if is_file else "directory",
        "contentType": (mimetypes.guess_type(name)[0] or "application/octet-stream")
        if is_file
        else "",
        "sizeInBytes": item.size,
        "lastModifiedAt": iso(item.modified_at),
        "directory": folder or ".",
    }


def session_of(pool: Record, record: Record) -> Json:
    """An identifier, as it is listed."""
    due = record.due_at or record.updated_at
    used = max(record.created_at, due - pool.body["cooldown_seconds"] * 1_000_000)
    return {
        "identifier": record.body["identifier"],
        "etag": record.body["session_id"] or record.id,
        "createdAt": iso(record.created_at),
        "lastAccessedAt": iso(used),
        "expireAt": iso(due),
        "expiresAt": iso(due),
    }
