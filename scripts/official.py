"""Writes what the server needs of the official package's types into `src/roost/api/framework/official.json`.

    make shapes

Which types those are, the table of operations says. `tests/api/test_official.py` fails when the file
and the installed package no longer agree.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from roost.api.framework import official, openapi
from roost.api.operations import OPERATIONS

FILE = Path(official.__file__).with_name(official.FILE)
_PACKAGE = "anthropic.types"
_LISTS = (list, Iterable, Sequence)
_PLAIN = {str: "str", int: "int", bool: "bool", object: "object", datetime: "datetime"}


def main() -> None:
    """Write the file."""
    FILE.write_text(written())


def written() -> str:
    """What the file has to say, given the installed package and the table of operations."""
    requests: dict[str, Any] = {}
    for name in sorted(set(_wanted_requests())):
        _add(requests, _found(name))
    replies, schemas = _replies(sorted({o.reply for o in OPERATIONS if o.reply is not None}))
    sections = {"requests": requests, "replies": replies, "schemas": schemas}
    lines = [f"{json.dumps(title)}: {_section(made)}" for title, made in sections.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _section(made: dict[str, Any]) -> str:
    """One line for each type, so that a change of one is a change of one line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(kind)}" for name, kind in sorted(made.items())]
    return "{\n" + ",\n".join(lines) + "\n}"


def _wanted_requests() -> Iterator[str]:
    for operation in OPERATIONS:
        for shape in (operation.body, operation.query):
            if shape is not None and isinstance(shape.source, str):
                yield shape.source


def _found(name: str) -> Any:
    folder, _, plain = f"{_PACKAGE}.{name}".rpartition(".")
    return getattr(import_module(folder), plain)


def _name_of(source: Any) -> str:
    folder = source.__module__.rpartition(".")[0]
    if not f"{folder}.".startswith(f"{_PACKAGE}."):
        raise SystemExit(f"{source.__module__}.{source.__name__} is not in {_PACKAGE}")
    return f"{folder}.{source.__name__}".removeprefix(f"{_PACKAGE}.")


def _add(requests: dict[str, Any], source: Any) -> str:
    """Write down a TypedDict, and those it refers to."""
    name = _name_of(source)
    hints = _hints(source)
    made = {
        "doc": source.__doc__,
        "open": getattr(source, "__extra_items__", None) is object,
        "fields": {field: _field(requests, hint) for field, hint in hints.items()},
    }
    if requests.setdefault(name, made) != made:
        raise SystemExit(f"{_PACKAGE} has two types with the name {name}")
    return name


def _hints(source: Any) -> dict[str, Any]:
    # `typing` remembers unions, and takes two literals for one when only their order differs: what
    # it gives back would depend on what was imported before.
    for forget in typing._cleanups:
        forget()
    return get_type_hints(source, include_extras=True)


def _field(requests: dict[str, Any], hint: Any) -> Any:
    if get_origin(hint) is Required:
        return {"required": _kind(requests, get_args(hint)[0])}
    return _kind(requests, hint)


def _kind(requests: dict[str, Any], hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        return {"request": _add(requests, hint)}
    if origin is Literal:
        return {"literal": list(args)}
    if origin in _LISTS:
        return {"list": _kind(requests, args[0])}
    if origin is dict and args[0] is str:
        return {"map": _kind(requests, args[1])}
    if origin in (Union, types.UnionType):
        return {"union": [_kind(requests, member) for member in args]}
    if hint is type(None):
        return "null"
    return _PLAIN[hint]


def _replies(names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    wanted = [(name, "serialization", TypeAdapter(_found(name))) for name in names]
    made, definitions = TypeAdapter.json_schemas(wanted, ref_template=openapi.REF)
    return {name: made[name, "serialization"] for name in names}, definitions["$defs"]


if __name__ == "__main__":
    main()
