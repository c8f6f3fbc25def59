"""Reading a file that may be sparse, may be no file at all any more, or may be written to right now."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import Final

from roost.domain.snapshot import PART
from roost.ports.tree import Changed, Found
from roost.sandboxes.tree.walk import name_of

_SAFELY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE: Final = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)
_SMALL_HOLE: Final = 64 * 1024
_SETTLED: Final = 20_000_000  # ns


class Patience:
    """How long one walk may wait, in all, for files to hold still."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._left = seconds

    def until_settled(self, status: os.stat_result) -> None:
        """A change is stamped when it begins: what was changed just now may be changing still.

        :raises Changed: it was, and there is no patience left
        """
        age = time.time_ns() - status.st_ctime_ns
        if not 0 <= age < _SETTLED:
            return
        wait = (_SETTLED - age) / 1e9
        if self._left < wait:
            raise Changed
        self._left -= wait
        time.sleep(wait)


def read(found: Found, patience: Patience) -> Iterator[bytes | int]:
    """A file's content in pieces, or how long a hole is. See `ports.tree.Tree.read`."""
    try:
        descriptor = os.open(name_of(found.path), _SAFELY, dir_fd=found.handle)
    except OSError as error:
        if error.errno in _GONE:
            raise Changed from None
        raise
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode) or _state(before)[:2] != (found.size, found.mtime):
            raise Changed
        patience.until_settled(before)
        yield from _content(descriptor, before)
        if _state(os.fstat(descriptor)) != _state(before):
            raise Changed
    finally:
        os.close(descriptor)


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _content(descriptor: int, status: os.stat_result) -> Iterator[bytes | int]:
    size = status.st_size
    if status.st_blocks * 512 >= size:
        yield from _pieces(descriptor, 0, size)
        return
    at = 0
    for start, end in extents(descriptor, size):
        if start > at:
            yield start - at
        yield from _pieces(descriptor, start, end)
        at = end
    if at < size:
        yield size - at


def _pieces(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """In pieces that begin at multiples of `PART`, so that an unchanged one is the same again."""
    while start < end:
        size = min(PART - start % PART, end - start)
        piece = os.pread(descriptor, size, start)
        if len(piece) != size:
            raise Changed
        yield piece
        start += size


def extents(descriptor: int, size: int, smallest: int = _SMALL_HOLE) -> Iterator[tuple[int, int]]:
    """Where there is data, small holes included: from, to."""
    start = end = 0
    for begins, ends in _bare_extents(descriptor, size):
        if begins - end < smallest and end > 0:
            end = ends
            continue
        if end > start:
            yield start, end
        start, end = begins, ends
    if end > start:
        yield start, end


def _bare_extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            begins = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no more data
                return
            raise
        at = min(os.lseek(descriptor, begins, os.SEEK_HOLE), size)
        if begins >= at:
            return
        yield begins, at
