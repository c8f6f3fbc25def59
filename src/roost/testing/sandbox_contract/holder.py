"""A process that opens a sandbox, runs a script in it, says so, and waits to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.testing.sandbox_contract.kit import make_provider


async def hold(factory: str, directory: Path, script: str) -> None:
    """Hold the sandbox open until this process is killed."""
    plan = Plan(
        session_id=directory.name,
        generation=1,
        home=LocalVolume(directory),
        workspace=LocalVolume(directory),
    )
    async with make_provider(factory).open(plan) as sandbox:
        await sandbox.spawn(["sh", "-c", f"{script}; sleep 600"])
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(hold, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
