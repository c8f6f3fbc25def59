"""The official package's types, from the file that `make shapes` writes.

Importing the package takes longer than everything else that a server does to start, and all that is
needed of it are the fields of some requests and the schemas of some replies. A test compares the file
with the installed package. Types are named as in `anthropic.types`: `beta.sessions.EventSendParams`.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, Required, Union

import msgspec
from typing_extensions import TypedDict

FILE: Final = "official.json"

# Types made at run time: to mypy these are values, not types.
_typed_dict: Any = TypedDict
_one_of: Any = Union
_literal: Any = Literal
_list_of: Any = list
_dict_of: Any = dict
_PLAIN: Final[dict[str, Any]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "null": None,
    "object": object,
    "datetime": datetime,
}


@cache
def request(name: str) -> Any:
    """A request's type, as a TypedDict. :raises KeyError: the file does not have it"""
    written = _written()["requests"][name]
    fields = {field: _field(hint) for field, hint in written["fields"].items()}
    more = {"extra_items": object} if written["open"] else {}
    made = _typed_dict(name.rpartition(".")[2], fields, total=False, **more)
    made.__doc__ = written["doc"]
    return made


def replies() -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of each reply by the name of its type, and the schemas they refer to."""
    written = _written()
    return written["replies"], written["schemas"]


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(
        resources.files(__package__).joinpath(FILE).read_bytes()
    )
    return found


def _field(hint: Any) -> Any:
    match hint:
        case {"required": inner}:
            return Required[_kind(inner)]
        case _:
            return _kind(hint)


def _kind(hint: Any) -> Any:
    match hint:
        case {"literal": words}:
            return _literal[tuple(words)]
        case {"list": item}:
            return _list_of[_kind(item)]
        case {"map": value}:
            return _dict_of[str, _kind(value)]
        case {"union": members}:
            return _one_of[tuple(_kind(member) for member in members)]
        case {"request": name}:
            return request(name)
        case _:
            return _PLAIN[hint]
