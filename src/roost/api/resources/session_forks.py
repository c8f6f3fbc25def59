"""`/roost/v1/sessions/{id}`: back to the end of an earlier turn."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import LARGEST_INT
from roost.api.framework.call import ApiCall, fingerprint
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.resources import sessions
from roost.core.sessions.forks import Forks
from roost.ports.log import Receipt

_Number = Annotated[int, Field(ge=1, le=LARGEST_INT)]
_Event = Annotated[str, Field(min_length=1, max_length=128)]

RESOURCE: Final = Resource()


class ForkParams(TypedDict, total=False):
    """Where to fork: a turn's number, or the id of an event in it. By default the newest turn.

    `files`: the fork gets a copy of them as they were; with `keep` it stays in the workspace that the
    session shares, with the files as they are.
    """

    at: _Number | _Event | None
    files: Literal["copy", "keep"]
    title: Annotated[str, Field(max_length=2048)] | None


class RewindParams(TypedDict, total=False):
    """Where to go back to, likewise; with `files` false, or `keep`, the files stay as they are."""

    to: Required[_Number | _Event]
    files: bool | Literal["keep"]


@RESOURCE.get("roost.sessions.turns", "/roost/v1/sessions/{session_id}/turns")
async def list_turns(call: ApiCall, forks: Forks) -> ASGIApp:
    """The turns of a session that have ended."""
    turns = await forks.turns(call.key, call.params["session_id"])
    return reply({"data": turns, "next_page": None})


@RESOURCE.post("roost.sessions.fork", "/roost/v1/sessions/{session_id}/fork", ForkParams)
async def fork(call: ApiCall, forks: Forks) -> ASGIApp:
    """Another session, as this one was."""
    key, session_id = call.idempotency_key, call.params["session_id"]
    asked = fingerprint(session_id.encode() + b" " + call.raw)
    receipt = None if key is None else Receipt(f"f:{key}", asked)
    made = await forks.fork(call.key, session_id, call.body, receipt)
    return reply(sessions.view(made))


@RESOURCE.post("roost.sessions.rewind", "/roost/v1/sessions/{session_id}/rewind", RewindParams)
async def rewind(call: ApiCall, forks: Forks) -> ASGIApp:
    """The same session, as it was."""
    session = await forks.rewind(call.key, call.params["session_id"], call.body)
    return reply(sessions.view(session))
