"""A directory that can be told from another one that takes its place and its inode."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from pathlib import Path
from typing import Final

from roost.ports.tree import Root

_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = 0x800
_BIRTH_AT: Final = 80  # where `stx_btime` is in `struct statx`
_libc = ctypes.CDLL(None, use_errno=True)


def root_of(path: Path) -> Root:
    """The directory at a path that is trusted. :raises FileNotFoundError:"""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        with os.scandir(descriptor) as entries:
            empty = next(entries, None) is None
        return Root(
            identity=f"{status.st_ino}.{_birth(descriptor)}",
            mode=stat.S_IMODE(status.st_mode),
            mtime=status.st_mtime_ns,
            owner=(status.st_uid, status.st_gid),
            empty=empty,
        )
    finally:
        os.close(descriptor)


def _birth(descriptor: int) -> int:
    """When it was made, in nanoseconds; 0 where the file system does not say."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statx(descriptor, b"", _EMPTY_PATH, _BIRTH, buffer) != 0:
        return 0
    (mask,) = struct.unpack_from("=I", buffer.raw, 0)
    if not mask & _BIRTH:
        return 0
    seconds, nanoseconds = struct.unpack_from("=qI", buffer.raw, _BIRTH_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
