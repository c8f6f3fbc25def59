"""What the official types leave out: sizes and patterns, Roost's own fields, and where null is fine.

Each resource declares it for the types that are its own (`framework/resource.py`), keyed by the official type and
field, `*` for every type. It is kept in one place because types of several resources are nested in one
another: an agent's tools are in the body of a session, too. `shapes` and `query` ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field
from pydantic.fields import FieldInfo

LARGEST_INT: Final = 2**31 - 1

NAME: Final = Field(min_length=1, max_length=256)
DESCRIPTION: Final = Field(max_length=2048)
METADATA: Final = Field(max_length=16)
ID: Final = Field(min_length=1, max_length=128)
VERSION: Final = Field(ge=1, le=LARGEST_INT)
PAGE_OF_100: Final = Field(ge=1, le=100)

HEADERS: Final = frozenset({"betas", "workspace_id", "anthropic_worker_id"})
"""Fields of the official types that travel as headers."""

_bounds: dict[str, FieldInfo] = {
    "*.limit": Field(ge=1, le=1000),
    "*.page": Field(min_length=1, max_length=1024),
}
_fields: dict[str, Mapping[str, Any]] = {}
_nullable: dict[str, frozenset[str]] = {}
_in_use = False


def add(
    bounds: Mapping[str, FieldInfo],
    fields: Mapping[str, Mapping[str, Any]],
    nullable: Mapping[str, frozenset[str]],
) -> None:
    """Note what a resource declares.

    `bounds` by type and field; `fields` that Roost adds to a type; `nullable` fields of a type.

    :raises RuntimeError: a shape was built already, without these bounds, or another resource declares the same
    """
    if _in_use and (bounds or fields or nullable):
        raise RuntimeError("import roost.api.operations before the first request is checked")
    for known, more in ((_bounds, bounds), (_fields, fields), (_nullable, nullable)):
        if twice := known.keys() & more.keys():
            raise RuntimeError(f"two resources declare {sorted(twice)}")
    _bounds.update(bounds)
    _fields.update(fields)
    _nullable.update(nullable)


def bound_of(owner: str, field: str) -> FieldInfo | None:
    """The bound on a field of an official type, if there is one."""
    _close()
    return _bounds.get(f"{owner}.{field}") or _bounds.get(f"*.{field}")


def own_fields(owner: str) -> Mapping[str, Any]:
    """The fields that Roost adds to an official type, with their types."""
    _close()
    return _fields.get(owner, {})


def is_nullable(owner: str, field: str) -> bool:
    """Whether null clears the field; the official types say so in words only."""
    _close()
    return field in _nullable.get(owner, ())


def _close() -> None:
    global _in_use
    _in_use = True
