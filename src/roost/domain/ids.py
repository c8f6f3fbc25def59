"""Prefixed ids that sort by the time they were made: `sesn_019a8c…`, `sevt_019a8c…`."""

from __future__ import annotations

import os
import time
from typing import Final
from uuid import UUID, uuid5

OURS: Final = UUID("6f1d6f0e-5d0b-4c53-9d0a-2f4b8a3c7e19")
"""The namespace of names that come out the same whenever they are worked out again."""


def mint(prefix: str) -> str:
    """A new id: 48 bits of milliseconds, then 80 random ones. Later ids sort after earlier ones."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def conversation_id(session_id: str) -> str:
    """What an agent's own program is to call the session, where it lets us choose."""
    return str(uuid5(OURS, session_id))
