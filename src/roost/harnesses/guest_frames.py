"""The frames that a program of `roost/guest` sends: four bytes of length, then JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox import Process

LARGEST: Final = 33 * 1024**2
_COMES_UP_WITHIN: Final = 60.0


async def greeted(process: Process, who: str, needs: str) -> AsyncIterator[dict[str, Any]]:
    """The frames that it sends once it has said hello; it is killed if it does not. `needs`: what it takes to start.

    :raises SandboxFailed: it does not start
    """
    frames, hello = frames_of(process, who), None
    try:
        with anyio.move_on_after(_COMES_UP_WITHIN):
            hello = await anext(frames, None)
    finally:
        if hello is None:
            process.signal(9)
    if hello is None:
        said = process.errors()[-500:].decode(errors="replace").strip()
        raise SandboxFailed(
            f"{who} cannot be started in the sandbox: {said or 'no answer'}",
            hint=f"The sandbox's image has to have {needs}.",
        )
    return frames


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
