"""Files that messages name: which they are, what a model can be shown of them, and how.

An entry of the log keeps the name; what a model is shown is made of the bytes when it is told.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roost.errors import InvalidRequest

Block = dict[str, Any]

MOST_IMAGE: Final = 5 * 1024**2 * 3 // 4
"""Bytes of an image: models take 5 MiB of base64."""

MOST_DOCUMENT: Final = 20 * 1024**2
MOST_TEXT: Final = 4 * 1024**2
MOST_TOGETHER: Final = 20 * 1024**2
"""Bytes of all files of one request: what a model is sent may have 32 MB."""

MOST_DOCUMENTS: Final = 100

_PDF: Final = b"%PDF-"
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def named_in(fields: Mapping[str, Any]) -> Iterator[tuple[int, Block, str]]:
    """The blocks of an event that name a file: where in its content, and which file."""
    for index, block in enumerate(fields.get("content") or ()):
        match block:
            case {
                "type": "image" | "document",
                "source": {"type": "file", "file_id": str(file_id)},
            }:
                yield index, block, file_id
            case _:
                pass


def check_size(block: Block, size: int, at: str) -> None:
    """Refuse a file that is larger than what models take.

    :raises InvalidRequest: it is more than a model takes
    """
    thing, most = ("image", MOST_IMAGE) if block["type"] == "image" else ("PDF", MOST_DOCUMENT)
    if size > most:
        raise InvalidRequest(
            f"{at}: the file has {size:,} bytes, and models take {most:,} of one {thing}",
            hint="Mount it as a resource of the session: the agent can read it there in parts.",
        )


def shown(block: Block, filename: str, data: bytes, at: str) -> Block:
    """The block with the file's content in it, as a model takes it. What it is, its bytes say.

    :raises InvalidRequest: no model takes it
    """
    rest = {name: value for name, value in block.items() if value is not None and name != "source"}
    if block["type"] == "image":
        return {**rest, "source": _base64(_image_type(data, at), data)}
    titled = {"title": filename, **rest}
    if data.startswith(_PDF):
        return {**titled, "source": _base64("application/pdf", data)}
    text = _text(data, at)
    return {**titled, "source": {"type": "text", "media_type": "text/plain", "data": text}}


def _base64(media_type: str, data: bytes) -> Block:
    return {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}


def _image_type(data: bytes, at: str) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for beginning, media_type in _IMAGES.items():
        if data.startswith(beginning):
            return media_type
    raise InvalidRequest(f"{at}: the file is no PNG, JPEG, GIF or WebP image")


def _text(data: bytes, at: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if not text.strip() or "\0" in text:
        raise InvalidRequest(f"{at}: the file is neither a PDF nor text in UTF-8")
    if len(data) > MOST_TEXT:
        raise InvalidRequest(
            f"{at}: the file has {len(data):,} bytes of text, and models take {MOST_TEXT:,} at most",
            hint="Mount it as a resource of the session: the agent can read it there in parts.",
        )
    return text
