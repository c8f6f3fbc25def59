"""Pools of interpreters: what one is made with, and which names its callers may give their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from roost.domain.agent import DEFAULT_EFFORT
from roost.errors import InvalidRequest

Body = dict[str, Any]

USUAL_COOLDOWN: Final = 300
MOST_COOLDOWN: Final = 86_400
LONGEST_LIFE: Final = 7 * 86_400
USUAL_SESSIONS: Final = 100
MOST_SESSIONS: Final = 1000
MOST_READY: Final = 20

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LONGEST_IDENTIFIER: Final = 256
_FIELDS: Final = (
    "name",
    "environment_id",
    "cooldown_seconds",
    "max_alive_seconds",
    "max_sessions",
    "ready_sessions",
)
_READY: Final = {"ready_sessions": 0}  # of pools from before there was such a field


def created(params: Mapping[str, Any]) -> Body:
    """The body of a new pool. :raises InvalidRequest: naming the field"""
    name = params["name"]
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "name: use 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
        )
    body = {
        "name": name,
        "environment_id": params["environment_id"],
        "cooldown_seconds": params.get("cooldown_seconds", USUAL_COOLDOWN),
        "max_alive_seconds": params.get("max_alive_seconds"),
        "max_sessions": params.get("max_sessions", USUAL_SESSIONS),
        "ready_sessions": params.get("ready_sessions", 0),
        "metadata": {},
        "agent": _agent(name),
    }
    _check(body)
    return body


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body with what is given. Its name stays. :raises InvalidRequest: naming the field"""
    after = {**_READY, **body, **{field: params[field] for field in _FIELDS[1:] if field in params}}
    _check(after)
    return after


def view(body: Body) -> Body:
    """What clients see of it."""
    return {field: {**_READY, **body}[field] for field in _FIELDS}


def check_identifier(identifier: str) -> str:
    """An identifier that a caller gave. :raises InvalidRequest:"""
    if not 0 < len(identifier) <= _LONGEST_IDENTIFIER or not identifier.isprintable():
        raise InvalidRequest(f"identifier: give 1 to {_LONGEST_IDENTIFIER} printable characters")
    return identifier


def due_at(body: Body, created_at: int, now: int) -> int:
    """When an identifier that was used just now is let go, in microseconds."""
    rests: int = now + body["cooldown_seconds"] * 1_000_000
    life: int | None = body["max_alive_seconds"]
    return rests if life is None else min(rests, created_at + life * 1_000_000)


def _check(body: Body) -> None:
    bounds = {
        "cooldown_seconds": (1, MOST_COOLDOWN),
        "max_alive_seconds": (1, LONGEST_LIFE),
        "max_sessions": (1, MOST_SESSIONS),
        "ready_sessions": (0, MOST_READY),
    }
    for field, (least, most) in bounds.items():
        value = body[field]
        if value is not None and not least <= value <= most:
            raise InvalidRequest(f"{field}: give a number from {least} to {most}")
    for field in ("cooldown_seconds", "max_sessions", "ready_sessions"):
        if body[field] is None:
            raise InvalidRequest(f"{field}: cannot be null")


def _agent(name: str) -> Body:
    """What the sessions of a pool have as their agent: there is no model behind it."""
    model = {"id": "none", "effort": {"type": DEFAULT_EFFORT}, "speed": "standard"}
    return {
        "name": f"pool {name}",
        "description": None,
        "system": None,
        "model": model,
        "tools": [],
        "mcp_servers": [],
        "skills": [],
        "multiagent": None,
        "execution_identity": None,
    }
