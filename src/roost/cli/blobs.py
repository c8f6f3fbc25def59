"""`roost blobs adopt`: for the operator, who knows better than the server which store is the right one."""

from __future__ import annotations

import anyio

from roost.blobs.choice import chosen
from roost.config import Settings
from roost.core.installation import Installation
from roost.serve.database import opened
from roost.serve.first_start import prepare


def adopt(settings: Settings, *, lost: bool) -> None:
    """Write this database's id into the store, and say what is in there of it."""
    prepare(settings.data)
    there, lacking = anyio.run(_adopt, settings, lost)
    print(f"the store is this database's now; it has the snapshots of {there} workspaces")
    if lacking and lost:
        print(f"{lacking} others begin without files, or with those that a server still has")
    elif lacking:
        print(f"it lacks those of {lacking} others: they wait, unless you give --lost")


async def _adopt(settings: Settings, lost: bool) -> tuple[int, int]:
    async with opened(settings) as (store, _):
        installation = Installation(store.catalog, store.workspaces, chosen(settings))
        return await installation.adopt(lost=lost)
