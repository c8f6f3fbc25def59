"""A file that a client has uploaded, or that a session has made: what is known of it besides its bytes."""

from __future__ import annotations

import mimetypes
import re
from typing import Any, Final

import msgspec

from roost.domain.events import Micros
from roost.errors import InvalidRequest

PART: Final = 4 * 1024 * 1024
"""How many bytes of a file are kept in one object."""

SHORTEST_LIFE: Final = 3600
LONGEST_LIFE: Final = 7_776_000
_LONGEST_NAME = 255
_MIME = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_UNKNOWN = "application/octet-stream"


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a file's content, in an object of its own."""

    size: int
    digest: str


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file's record. `name` is what records are found by: the session it belongs to, if any.

    `origin` is where the session has it from: the path it had there, and what it looked like. `attached` is
    the file that a message to the session names, of which this is the session's copy. `held` is the file whose
    bytes this one has, if that is another one.
    """

    filename: str
    mime_type: str
    parts: tuple[FilePart, ...] = ()
    name: str | None = None
    expires_at: Micros | None = None
    origin: str | None = None
    attached: str | None = None
    held: str | None = None

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return sum(part.size for part in self.parts)

    @property
    def body(self) -> dict[str, Any]:
        """As a record has it."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


def file_of(body: dict[str, Any]) -> StoredFile:
    """From a record's body."""
    return msgspec.convert(body, StoredFile)


def part_key(file_id: str, index: int) -> str:
    """Where a part's bytes are."""
    return f"{prefix_of(file_id)}{index:06}"


def prefix_of(file_id: str) -> str:
    """What the keys of all of a file's parts begin with."""
    return f"files/{file_id}/"


def named(given: str, mime: str | None) -> tuple[str, str]:
    """A file's name and type, from what a client calls it. :raises InvalidRequest:"""
    name = given.replace("\\", "/").rpartition("/")[2]
    kind = (mime or "").partition(";")[0].strip().lower()
    if not _MIME.fullmatch(kind) or kind == _UNKNOWN:
        kind = mimetypes.guess_type(name)[0] or _UNKNOWN
    if not name:
        name = f"unnamed{mimetypes.guess_extension(kind) or ''}"
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"file: a name has at most {_LONGEST_NAME} characters, all printable")
    return name, kind


def lifetime(given: str | None) -> int | None:
    """How many seconds a file is to be kept; None for ever. :raises InvalidRequest:"""
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,9}", given) or not SHORTEST_LIFE <= int(given) <= LONGEST_LIFE:
        raise InvalidRequest(
            f"expires_in_seconds: give a number from {SHORTEST_LIFE} to {LONGEST_LIFE}"
        )
    return int(given)
