"""Prefixed ids that sort by the time they were made: `sesn_01m7…`, `sevt_01m7…`."""

from __future__ import annotations

import os
import time
from base64 import b32encode

_READABLE = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",  # what base 32 writes, in order
    b"0123456789abcdefghjkmnpqrstvwxyz",  # Crockford's: sorts like the number, no letter reads as a digit
)


def mint(prefix: str) -> str:
    """A new id: 48 bits of milliseconds, then 80 random ones. Later ids sort after earlier ones."""
    millis = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    return f"{prefix}_{b32encode(millis + os.urandom(10))[:26].translate(_READABLE).decode()}"
