"""What a channel takes is bounded, whatever the other side says of it."""

from __future__ import annotations

import anyio
import pytest

from roost.dynamic_sessions import CodePool
from roost.sandboxes.pool.channels import WINDOW, PoolChannel
from roost.sandboxes.pool.link import Link


async def test_no_more_can_be_taken_than_was_sent() -> None:
    pool = CodePool("http://127.0.0.1:9", "token")
    channel = PoolChannel(Link(pool, "id", "folder", "/door"), 2)
    await channel.put(b"x" * 1000)
    channel.frame(b"T", b"600")
    for said in (b"401", b"-1", b"1e3", b"9" * 40, b""):
        with pytest.raises(ValueError):
            channel.frame(b"T", said)
    channel.frame(b"T", b"400")
    with anyio.move_on_after(0.01) as scope:
        await channel.put(b"x" * (WINDOW + 1))
    assert scope.cancelled_caught
    await pool.aclose()
