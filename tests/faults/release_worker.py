"""A node that is killed after its session has come to rest, and before it has given the lease back."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
from tests.core.node import message, node

from roost.domain.session import Lease


async def work(data: Path, last_words: str) -> None:
    """Answer one message; die with another one, if there is one, just accepted."""
    async with node(data) as roost:

        async def die(lease: Lease) -> None:
            if last_words:
                await roost.intake.accept(lease.session_id, [message(last_words)])
            os.kill(os.getpid(), signal.SIGKILL)

        roost.store.log.release = die  # type: ignore[method-assign]
        await roost.session(message("one"))
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(work, Path(sys.argv[1]), sys.argv[2])
