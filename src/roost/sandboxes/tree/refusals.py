"""What the system says of a path that a person gave, in the person's words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from roost.errors import Conflict, DiskFull, InvalidRequest, NotFound, RoostError, TooLarge

_THERE = "Choose another name, or send `overwrite` to replace a file."
_FULL = "Send `recursive=true` to remove all of it."
_WORDS: Final[dict[int, tuple[type[RoostError], str, str | None]]] = {
    errno.ENOENT: (NotFound, "there is nothing at {}", None),
    errno.EEXIST: (Conflict, "something is at {} already", _THERE),
    errno.EISDIR: (Conflict, "something is at {} already", _THERE),
    errno.ENOTEMPTY: (Conflict, "{} is not empty", _FULL),
    errno.ENOSPC: (DiskFull, "there is no room for {}", DiskFull.hint),
    errno.EDQUOT: (DiskFull, "there is no room for {}", DiskFull.hint),
    errno.EFBIG: (TooLarge, "there is no room for {}", None),
    errno.ENOTDIR: (InvalidRequest, "path: {} is not a directory, or leads through a file", None),
    errno.ELOOP: (InvalidRequest, "path: {} leads over a link", None),
    errno.EXDEV: (InvalidRequest, "path: {} leads out of the directory", None),
    errno.ENAMETOOLONG: (InvalidRequest, "path: {} is too long", None),
    errno.EINVAL: (InvalidRequest, "path: {} cannot be", None),
    errno.ENXIO: (InvalidRequest, "path: {} is not a file", None),
}


@contextmanager
def in_words(path: str) -> Iterator[None]:
    """Errors of the system inside, as errors of ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WORDS:
            raise
        kind, message, hint = _WORDS[error.errno]
        raise kind(message.format(path[:200] or "the directory"), hint=hint) from None
