"""Waiting for sandboxes that cannot be had now: an engine does not answer, an image is missing, a queue is full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from roost.errors import SandboxUnavailable
from roost.ports.harness import Trouble

_LOOK_AGAIN: Final = 5.0  # seconds between two tries to have a sandbox
_TOLD: Final = 5  # reasons, of one wait: an engine may have a new one each time
Found = TypeVar("Found")


async def once_available(
    look: Callable[[], Awaitable[Found]],
    tell: Callable[[Trouble], Awaitable[None]],
    pause: Callable[[float], Awaitable[object]],
) -> Found:
    """What `look` finds, as soon as it does not say that there are no sandboxes now. Each reason is told once,
    and a `pause` of some seconds is made after each look.
    """
    told: set[str] = set()
    while True:
        try:
            return await look()
        except SandboxUnavailable as missing:
            text = f"{missing.message}. {missing.hint or ''}".strip()
            if text not in told and len(told) < _TOLD:
                told.add(text)
                await tell(Trouble(missing.code, text, "retrying"))
        await pause(_LOOK_AGAIN)
