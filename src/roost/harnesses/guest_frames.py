"""The frames that a program of `roost/guest` sends: four bytes of length, then JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox import Process

LARGEST: Final = 33 * 1024**2


async def frames_of(process: Process, who: str) -> AsyncIterator[dict[str, Any]]:
    """The frames that it sends, until it ends. What it says is a sandbox's word, so frames are bounded.

    :raises SandboxFailed: that is no frame :raises msgspec.DecodeError: nor JSON
    """
    held = bytearray()
    while data := await process.receive():
        held += data
        while len(held) >= 4:
            size = int.from_bytes(held[:4], "big")
            if size > LARGEST:
                raise SandboxFailed(f"{who} sent something that is too large")
            if len(held) < 4 + size:
                break
            frame = msgspec.json.decode(bytes(held[4 : 4 + size]), type=dict[str, Any])
            del held[: 4 + size]
            yield frame


def frame_of(value: object) -> bytes:
    """A value as the bytes of a frame."""
    body = msgspec.json.encode(value)
    return len(body).to_bytes(4, "big") + body
