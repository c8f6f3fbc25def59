"""Prefixed ids that sort by the time they were made: `sesn_019a8c…`, `sevt_019a8c…`."""

from __future__ import annotations

import os
import time


def mint(prefix: str) -> str:
    """A new id: 48 bits of milliseconds, then 80 random ones. Later ids sort after earlier ones."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
