"""What nodes tell each other over NOTIFY: notified topics, and previews. Payloads are at most 8000 bytes long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from roost.domain.events import Preview

CHANNEL: Final = "roost"
NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', said) FROM unnest($1::text[]) AS said"

_MOST_TOPICS: Final = 4000  # bytes
_MOST_TEXT: Final = 1200  # characters: six bytes each at worst


class Notified(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Topics that were notified."""

    topics: list[str]


class PreviewPiece(msgspec.Struct, frozen=True, tag="p", array_like=True):
    """A preview, whose text begins after `offset` characters of its event's text."""

    session_id: str
    offset: int
    preview: Preview


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notified | PreviewPiece).decode


def notifications(topics: Iterable[str]) -> list[str]:
    """As few payloads as it takes."""
    parts: list[list[str]] = []
    size = _MOST_TOPICS
    for topic in topics:
        size += len(topic.encode()) + 3
        if size > _MOST_TOPICS:
            parts.append([])
            size = len(topic.encode())
        parts[-1].append(topic)
    return [_encode(Notified(part)).decode() for part in parts]


def preview_pieces(session_id: str, offset: int, preview: Preview) -> list[str]:
    """A preview, in pieces if its text is long."""
    said = []
    for start in range(0, max(1, len(preview.text)), _MOST_TEXT):
        piece = msgspec.structs.replace(preview, text=preview.text[start : start + _MOST_TEXT])
        said.append(_encode(PreviewPiece(session_id, offset + start, piece)).decode())
    return said


def decoded(payload: str) -> Notified | PreviewPiece | None:
    """What a payload says; None if it is nothing of ours."""
    try:
        said: Notified | PreviewPiece = _decode(payload)
    except msgspec.DecodeError:
        return None
    return said
