"""What a log contains: drafts become entries when a store gives them a place and a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

Micros = int
"""A moment: microseconds since 1970 in UTC, always told by the store."""

WITHDRAWABLE = frozenset({"user.message", "system.message", "user.tool_confirmation"})
"""The inputs that an interrupt withdraws while they wait."""

PRIVATE = frozenset(
    {
        "roost.model_answer",
        "roost.tool_started",
        "roost.mcp_tools",
        "roost.context",
        "roost.left_out",
    }
)
"""Entries that are a harness's own: they have what the model thinks, and no client is shown them."""

_MARK = b'"withdrawn_at":'
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Moment(msgspec.Struct, frozen=True):
    """When a change happens, and where the ids of the entries come from that the rules add to it."""

    now: Micros
    new_id: Callable[[], str]


class Draft(msgspec.Struct, frozen=True):
    """An event about to be written."""

    type: str
    body: bytes
    id: str

    @classmethod
    def of(cls, type: str, id: str, /, **fields: Any) -> Draft:
        """A draft of this type; `fields` are what the event has besides id, type and time."""
        return cls(type, _encode(fields), id)

    @classmethod
    def of_fields(cls, type: str, id: str, fields: dict[str, Any]) -> Draft:
        """The same, of fields that are a dict already."""
        return cls(type, _encode(fields), id)


class Entry(msgspec.Struct, frozen=True):
    """One entry of a log: an event at its position. A `queued` one shows `processed_at: null`."""

    seq: int
    id: str
    type: str
    body: bytes
    at: Micros
    queued: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The event's own fields, decoded."""
        fields: dict[str, Any] = _decode(self.body)
        return fields

    def json(self) -> bytes:
        """The event as clients see it. Assembled as text: the body is never parsed on the way out."""
        moment = b"null" if self.queued else b'"%b"' % iso(self.at).encode()
        head = b'{"type":"%b","id":"%b","processed_at":%b' % (
            self.type.encode(),
            self.id.encode(),
            moment,
        )
        return head + (b"}" if self.body == b"{}" else b"," + self.body[1:])

    def taken_up(self) -> Draft:
        """The same event again, no longer queued: what is appended when an agent gets it."""
        return Draft(self.type, self.body, self.id)

    def withdrawn_at(self, now: Micros) -> Draft:
        """The same event again, no longer queued: what is appended when no agent will ever get it."""
        mark = b'{"withdrawn_at":"%b"' % iso(now).encode()
        return Draft(
            self.type, mark + (b"}" if self.body == b"{}" else b"," + self.body[1:]), self.id
        )

    @property
    def withdrawn(self) -> bool:
        """Whether it says that an input was withdrawn before any agent got it."""
        return _MARK in self.body and self.type in WITHDRAWABLE and "withdrawn_at" in self.fields


def iso(moment: Micros) -> str:
    """RFC 3339 in UTC with microseconds."""
    seconds, micros = divmod(moment, 1_000_000)
    return f"{_to_the_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=4096)
def _to_the_second(seconds: int) -> str:
    """Kept, because whatever is told together happened within a few seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Preview(msgspec.Struct, frozen=True):
    """Text of an event that is still being written: shown, never stored.

    `after` is the last seq its runner had appended, so that a follower shows it in its place.
    An empty `text` announces the event (`event_start`).
    """

    event_id: str
    type: str
    text: str
    after: int
