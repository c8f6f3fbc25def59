"""A piece of code that a session's interpreter is asked to run, and what came of it.

Both are a field, `execution`, of events that clients know: the code is the text of a `user.message`, and what
came of it is told in an `agent.message`. So an execution is as durable as any input of a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from roost.domain.events import Entry

FIELD: Final = "execution"
MOST_SECONDS: Final = 220.0
USUAL_SECONDS: Final = 120.0
MOST_OUTPUT: Final = 1024 * 1024
"""Bytes of each stream that are kept."""

RESTARTED: Final = "Kernel restarted"
ABORTED: Final = "Execution aborted: the server or the sandbox ended while it ran, so it is not known how far it got."
LOST: Final = f"{RESTARTED}: variables of earlier executions are lost; files are still there."

Kind = Literal["python", "shell", "exec"]
Outcome = Literal["ok", "error", "timeout", "stopped", "died", "aborted"]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_OUTPUT)]


class ExecutionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of an interpreter besides the code itself: `argv` stands for it if the kind is `exec`."""

    id: str
    kind: Kind = "python"
    argv: Sequence[str] = ()
    seconds: _Seconds = USUAL_SECONDS
    most: _Bytes = MOST_OUTPUT


class ExecutionImage(msgspec.Struct, frozen=True):
    """A picture that was shown, in base64."""

    format: str
    base64_data: str


class ExecutionError(msgspec.Struct, frozen=True):
    """What was raised; its traceback is at the end of `stderr`."""

    name: str
    message: str = ""


class ExecutionValue(msgspec.Struct, frozen=True):
    """The last expression's value: itself if JSON has it, else as text."""

    value: bool | int | float | str | None


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an execution. `value`: None if it does not end with an expression.

    `cut` names the streams that were longer than what is kept. `lost`: the interpreter is another one than that of
    the execution before, so its variables are gone. `restarted`: this one has ended it.
    """

    id: str = ""
    kind: Kind = "python"
    status: Outcome
    stdout: str = ""
    stderr: str = ""
    value: ExecutionValue | None = None
    images: Sequence[ExecutionImage] = ()
    error: ExecutionError | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    cut: Sequence[str] = ()
    lost: bool = False
    restarted: bool = False


def request_in(entry: Entry) -> tuple[ExecutionRequest, str]:
    """What a message asks for, and its text. One that says nothing about it is Python, with the usual limits.

    :raises msgspec.ValidationError: what it says is not understood
    """
    fields: Mapping[str, Any] = entry.fields
    blocks = fields.get("content") or ()
    code = "\n".join(block.get("text", "") for block in blocks if block.get("type") == "text")
    asked = {"id": entry.id, **(fields.get(FIELD) or {})}
    return msgspec.convert(asked, ExecutionRequest), code


def result_in(entry: Entry) -> ExecutionResult | None:
    """What an agent's message says of an execution; None: it is about none."""
    told = entry.fields.get(FIELD)
    return None if told is None else msgspec.convert(told, ExecutionResult)


def answer_id(input_id: str) -> str:
    """The id of the event that tells what came of an input: the same whenever it is worked out."""
    return f"sevt_{blake2b(f'answer {input_id}'.encode(), digest_size=13).hexdigest()}"


def explained(request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
    """The result of a request, with what a caller has to be told beside its own output at the end of `stderr`."""
    said = {
        "timeout": f"Request timed out waiting for code execution to complete after {request.seconds:g} seconds",
        "stopped": "Execution stopped",
        "aborted": ABORTED,
    }.get(result.status)
    notes = [LOST] if result.lost else []
    notes += [said] if said else []
    notes += [RESTARTED] if result.restarted else []
    begun = result.stderr and not result.stderr.endswith("\n")
    added = "".join(f"{note}\n" for note in notes)
    stderr = result.stderr + ("\n" if begun and added else "") + added
    return replace(result, id=request.id, kind=request.kind, stderr=stderr)
