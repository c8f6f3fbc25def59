"""One step with a tree of about a million files, in a process of its own: prints what it came to as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from tests.workspaces.trees import put_back, tree

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.snapshots import Snapshots
from roost.errors import WorkspaceTooLarge
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.state import default_state
from roost.testing.sandbox_contract.kit import run


async def take(home: Path) -> dict[str, Any]:
    """A snapshot."""
    try:
        taken = await Snapshots(FolderBlobs(home.parent / "blobs")).take("w", tree(home), 1)
    except WorkspaceTooLarge as refused:
        return {"refused": refused.message}
    totals = taken.snapshot.totals
    return {"entries": totals.entries, "stored": taken.stored, "left out": taken.report.counts}


async def restore(home: Path) -> dict[str, Any]:
    """The newest snapshot, elsewhere."""
    snapshots = Snapshots(FolderBlobs(home.parent / "blobs"))
    newest = (await snapshots.head("w")).newest
    assert newest is not None
    await put_back(snapshots, newest, home.parent / "again")
    return {}


async def open_sandbox(home: Path) -> dict[str, Any]:
    """A sandbox with it as its home."""
    generation = time.time_ns()
    plan = Plan(
        session_id="sesn_million",
        generation=generation,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
    )
    provider = BubblewrapProvider(data=default_state(), path=os.environ.get("PATH"))
    async with provider.open(plan) as sandbox:
        return {"code": (await run(sandbox, "true")).code}


def main() -> None:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = anyio.run(globals()[sys.argv[1]], Path(sys.argv[2]))
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1), "MiB": peak}))


if __name__ == "__main__":
    main()
