"""How a snapshot is stored: packs, segments of entries, and objects that are sealed.

A pack is what many small parts become, so that they compress well and cost one request: frames, each compressed on
its own and holding about a mebibyte of parts one after another, and at its end how long each frame is. Where a part
will lie is known before anything is compressed. Manifests and heads are sealed: they say themselves whether they
are whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec
import zstandard

from roost.domain.snapshot import DIGEST, Head, Manifest, SnapshotPart, TreeEntry, digest_of
from roost.errors import SnapshotCorrupt

FRAME: Final = 1 << 20
LOAD: Final = 8 << 20
_MOST_IN_A_FRAME: Final = 1 << 29
_MAGIC: Final = b"roost1\n\0"
_MOST_SEALED: Final = 1 << 30
_COUNT: Final = struct.Struct("<I")


T = TypeVar("T")


class Load:
    """What is to become one pack: frames, each a list of parts' bytes."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.size = 0
        self._frames: list[list[bytes]] = []
        self._last = FRAME  # bytes in the last frame

    @property
    def full(self) -> bool:
        """Whether it should be packed before anything is added."""
        return self.size >= LOAD

    def add(self, digest: bytes, data: bytes) -> SnapshotPart:
        """Put a part in; says where it will lie."""
        if self._last >= FRAME:
            self._frames.append([])
            self._last = 0
        part = SnapshotPart(digest, self.key, len(self._frames) - 1, self._last, len(data))
        self._frames[-1].append(data)
        self._last += len(data)
        self.size += len(data)
        return part

    def pack(self, level: int = 3) -> bytes:
        """Compress it. Takes a while."""
        compressor = zstandard.ZstdCompressor(level=level)
        frames = [compressor.compress(b"".join(frame)) for frame in self._frames]
        lengths = b"".join(_COUNT.pack(len(frame)) for frame in frames)
        return b"".join([*frames, lengths, _COUNT.pack(len(frames))])


def unpack(pack: bytes, parts: Sequence[SnapshotPart]) -> Iterator[tuple[SnapshotPart, bytes]]:
    """Each of the parts, which all lie in this pack, with its bytes, checked. Takes a while.

    :raises SnapshotCorrupt: the pack is not what was stored
    """
    frames = _frames(pack)
    opened, content = -1, b""
    for part in sorted(parts, key=lambda part: part.frame):
        if part.frame != opened:
            if part.frame >= len(frames):
                raise SnapshotCorrupt(f"the pack {part.pack} is too short")
            content = _decompressed(frames[part.frame], _MOST_IN_A_FRAME)
            opened = part.frame
        data = content[part.start : part.start + part.size]
        if digest_of(data) != part.digest:
            raise SnapshotCorrupt(f"the pack {part.pack} is damaged")
        yield part, data


def _frames(pack: bytes) -> list[bytes]:
    (count,) = _COUNT.unpack(pack[-4:]) if len(pack) >= 4 else (0,)
    table = pack[-4 * (count + 1) : -4]
    if not count or len(table) != 4 * count:
        raise SnapshotCorrupt("a pack has no end")
    lengths = struct.unpack(f"<{count}I", table)
    frames, at = [], 0
    for length in lengths:
        frames.append(pack[at : at + length])
        at += length
    return frames


def encode_entries(entries: Sequence[TreeEntry]) -> bytes:
    """A segment's bytes; the same entries have the same."""
    return msgspec.msgpack.encode(entries)


def decode_entries(data: bytes) -> list[TreeEntry]:
    """What `encode_entries` was given. :raises SnapshotCorrupt: it was given nothing like that"""
    return _decoded(data, list[TreeEntry])


def seal(thing: Manifest | Head) -> bytes:
    """An object's bytes, which say themselves whether they are whole."""
    packed = zstandard.compress(msgspec.msgpack.encode(thing), 3)
    return _MAGIC + digest_of(packed) + packed


def unseal(data: bytes, kind: type[T]) -> T:
    """The value that was sealed, once its digest was checked.

    :raises SnapshotCorrupt: not one byte may differ
    """
    body = len(_MAGIC) + DIGEST
    packed = data[body:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : body] != digest_of(packed):
        raise SnapshotCorrupt("an object of a snapshot is damaged")
    return _decoded(_decompressed(packed, _MOST_SEALED), kind)


def _decompressed(packed: bytes, most: int) -> bytes:
    """What was compressed, if it is no more than `most` bytes. :raises SnapshotCorrupt:"""
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= most:
            raise SnapshotCorrupt("a part of a snapshot is larger than it says")
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise SnapshotCorrupt(f"a part of a snapshot cannot be unpacked: {error}") from None


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SnapshotCorrupt(f"an object of a snapshot cannot be read: {error}") from None
