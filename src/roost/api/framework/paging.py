"""Pages of lists, and the cursors between them: opaque to clients, and checked when they come back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from roost.api.framework.query import span_of
from roost.domain.events import Micros
from roost.errors import InvalidRequest
from roost.ports.catalog import Kind, Record, RecordQuery

Order = Literal["asc", "desc"]
T = TypeVar("T")

DEFAULT_PAGE: Final = 20

_STEP: Final = DEFAULT_PAGE + 1
_PAGE_BYTES: Final = 1024 * 1024
_encode = msgspec.json.Encoder().encode

_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Cursor(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """Where a list continues: which list, in which order, after which item, created when.

    `back` walks towards the beginning; `as_of` is the moment, as a seq, that a listing pictures.
    """

    of: Annotated[str, msgspec.Meta(max_length=128)]
    order: Order
    after: _Id | _Count
    at: Micros = 0
    back: bool = False
    as_of: _Count | None = None

    def encoded(self) -> str:
        """The cursor as it is given to clients."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


def cursor_in(query: dict[str, Any], of: str, order: Order) -> Cursor | None:
    """The cursor a request carries, if any.

    :raises InvalidRequest: not one of this list, or from a request with other terms
    """
    word = query.get("page")
    if word is None:
        return None
    try:
        padded = word.encode("ascii") + b"=" * (-len(word) % 4)
        cursor = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Cursor)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise InvalidRequest("page: not a cursor that this server gave out") from None
    if cursor.of != of:
        raise InvalidRequest("page: a cursor of another list")
    if cursor.order != order:
        raise InvalidRequest(f"page: a cursor of a listing in order {cursor.order!r}")
    _check_span(cursor, query)
    return cursor


def cut(items: Sequence[T], limit: int) -> tuple[list[T], bool]:
    """The page, and whether there is more: listings read one item further than they show."""
    return list(items[:limit]), len(items) > limit


async def collect_page(
    some: Callable[[T | None, int], Awaitable[Sequence[T]]], limit: int, body: Callable[[T], Any]
) -> tuple[list[T], bool]:
    """A page that is limited by count and by bytes, and whether there is more; it is read a few items at a time.

    `some` gives so many after one. What is in a listing may be large: agents have up to a megabyte, and
    each session has one.
    """
    found: list[T] = []
    size = 0
    while True:
        count = min(_STEP, limit + 1 - len(found))
        got = await some(found[-1] if found else None, count)
        found += got
        size += sum(len(_encode(body(item))) for item in got)
        if len(got) < count or len(found) > limit:
            return cut(found, limit)
        if size >= _PAGE_BYTES:
            return found[:-1], True


def page(data: list[Any], last: Cursor | None) -> dict[str, Any]:
    """A page of a list that goes forward only."""
    return {"data": data, "next_page": None if last is None else last.encoded()}


def record_query(query: dict[str, Any], kind: Kind, tenant: str) -> RecordQuery:
    """The query for a page of records, and one more, which tells whether there is another page."""
    cursor = cursor_in(query, kind, "desc")
    since, until = span_of(query)
    return RecordQuery(
        kind=kind,
        tenant=tenant,
        include_archived=query.get("include_archived", False),
        since=since,
        until=until,
        after=None if cursor is None else str(cursor.after),
        limit=query.get("limit", DEFAULT_PAGE) + 1,
    )


async def record_page(
    fetch: Callable[[RecordQuery], Awaitable[list[Record]]],
    query: RecordQuery,
    view: Callable[[Record], Any],
) -> dict[str, Any]:
    """A page of records, newest first."""

    async def some(after: Record | None, count: int) -> list[Record]:
        place = query.after if after is None else after.id
        return await fetch(replace(query, after=place, limit=count))

    records, more = await collect_page(some, query.limit - 1, lambda record: record.body)
    last = None
    if more:
        end = records[-1]
        last = Cursor(of=query.kind, order="desc", after=end.id, at=end.created_at)
    return page([view(record) for record in records], last)


def _check_span(cursor: Cursor, query: dict[str, Any]) -> None:
    since, until = span_of(query)
    if cursor.at and not (since or cursor.at) <= cursor.at <= (until or cursor.at):
        raise InvalidRequest("page: the created_at filters exclude where this cursor stands")
