"""Query strings, derived from the same official types as bodies.

Lists come as `types[]=a&types[]=b` or repeated without brackets, ranges as `created_at[gte]=`. A
parameter nobody knows is refused: a misspelt filter that is ignored shows other people's rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, Required, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from roost.api.framework.bounds import HEADERS, bound_of, own_fields
from roost.api.framework.shapes import explained, source_of, strict_dict
from roost.domain.events import Micros
from roost.errors import InvalidRequest

_IGNORED = {"beta"}  # older clients add `?beta=true` to every address
_RANGE = re.compile(r"^(.+)_(gte|gt|lte|lt)$")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _whole(text: str) -> object:
    return int(text) if re.fullmatch(r"\d{1,10}", text) else text


def _flag(text: str) -> object:
    return {"true": True, "false": False}.get(text, text)


def _moment(text: str) -> object:
    try:
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper())
    except ValueError:
        pass  # the right form, but no such moment
    raise ValueError("give a moment in RFC 3339, such as 2026-03-15T10:00:00Z")


_annotated: Any = Annotated  # a type made at run time
_READ = {
    int: BeforeValidator(_whole),
    bool: BeforeValidator(_flag),
    datetime: BeforeValidator(_moment),
}


class Query:
    """The parameters one operation takes. Without a source: none."""

    def __init__(self, source: Any = None, *, path: Iterable[str] = ()) -> None:
        self.source = source
        """A TypedDict, or the name of an official one."""
        self._left_out = HEADERS | set(path)

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The type of each parameter, by its name."""
        return {
            _parameter(field): _kind(self._owner, field, hint)
            for field, hint in self._hints.items()
            if field not in self._left_out
        }

    @cached_property
    def adapter(self) -> TypeAdapter[dict[str, Any]]:
        """What checks them; made at the first use, because making all of them delays the start."""
        return TypeAdapter(strict_dict(self._owner, self.kinds, extra="forbid"))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        source = source_of(self.source)
        hints = get_type_hints(source, include_extras=True) if source else {}
        return {**hints, **own_fields(self._owner)}

    @cached_property
    def _owner(self) -> str:
        return source_of(self.source).__name__ if self.source else "Nothing"

    @cached_property
    def _many(self) -> set[str]:
        plain = ((field, _given(hint)[0]) for field, hint in self._hints.items())
        return {field for field, hint in plain if get_origin(hint) is list}

    def parse(self, text: bytes) -> dict[str, Any]:
        """The parameters by name. :raises InvalidRequest: naming the one that is wrong"""
        if not text:
            return {}
        found: dict[str, Any] = {}
        for name, value in _pairs(text):
            self._add(found, name, value)
        try:
            return self.adapter.validate_python(found)
        except ValidationError as error:
            raise InvalidRequest(explained(error, "query")) from None

    def _add(self, found: dict[str, Any], name: str, value: str) -> None:
        if name in _IGNORED:
            return
        many = name.removesuffix("[]") in self._many
        plain = name.removesuffix("[]") if many else name
        if plain not in self.kinds:
            raise InvalidRequest(f"{name[:80]}: unknown query parameter")
        if many:
            found.setdefault(plain, []).append(value)
        elif plain in found:
            raise InvalidRequest(f"{name}: given more than once")
        else:
            found[plain] = value


def span_of(query: dict[str, Any]) -> tuple[Micros | None, Micros | None]:
    """The first and the last moment that the `created_at` filters let through."""
    since = _bounds(query, "gte", "gt", +1)
    until = _bounds(query, "lte", "lt", -1)
    return max(since, default=None), min(until, default=None)


def _bounds(query: dict[str, Any], inclusive: str, exclusive: str, step: int) -> list[Micros]:
    given = ((inclusive, 0), (exclusive, step))
    return [
        (query[f"created_at[{word}]"] - _EPOCH) // timedelta(microseconds=1) + off
        for word, off in given
        if f"created_at[{word}]" in query
    ]


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=500
        )
    except ValueError:
        raise InvalidRequest("the query string is not valid percent-encoded UTF-8") from None
    if any("\0" in value for _, value in pairs):
        raise InvalidRequest("the query string must not contain NUL characters")
    return pairs


def _parameter(field: str) -> str:
    ranged = _RANGE.match(field)
    return f"{ranged[1]}[{ranged[2]}]" if ranged else field


def _given(hint: Any) -> tuple[Any, list[FieldInfo]]:
    """The type of a parameter that is there, and the bounds that are declared with it.

    It has a value: leaving it out means what null would.
    """
    if get_origin(hint) is Required:
        (hint,) = get_args(hint)
    hint, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    members = get_args(hint) if get_origin(hint) is Union else ()
    if datetime in members:
        hint = datetime
    elif type(None) in members:
        hint = next(member for member in members if member is not type(None))
    return hint, [bound for bound in bounds if isinstance(bound, FieldInfo)]


def _kind(owner: str, field: str, hint: Any) -> Any:
    hint, own = _given(hint)
    read = _READ.get(hint) if get_origin(hint) is None else None
    bounds = own or (bound_of(owner, field),)
    notes = [note for note in (*bounds, read) if note is not None]
    return _annotated[hint, *notes] if notes else hint
