"""Prefixed ids that sort by the time they were made: `sesn_019a8c…`, `sevt_019a8c…`."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Final
from uuid import UUID, uuid5

OURS: Final = UUID("6f1d6f0e-5d0b-4c53-9d0a-2f4b8a3c7e19")
"""The namespace of names that come out the same whenever they are worked out again."""


def mint(prefix: str) -> str:
    """A new id: 48 bits of milliseconds, then 80 random ones. Later ids sort after earlier ones."""
    try:
        random = _unused.pop()
    except IndexError:
        random = _random()
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{random}"


def _random() -> str:
    """80 random bits that nobody else gets. Asking the kernel for each would let other threads in between."""
    some = os.urandom(10 * _AT_ONCE).hex()
    _unused.extend(some[at : at + 20] for at in range(0, len(some), 20))
    return os.urandom(10).hex()


_AT_ONCE: Final = 256
_unused: Final[deque[str]] = deque()
os.register_at_fork(after_in_child=_unused.clear)  # a copy of this process makes ids of its own


def conversation_id(session_id: str) -> str:
    """What an agent's own program is to call the session, where it lets us choose."""
    return str(uuid5(OURS, session_id))
