"""`roost blobs adopt`: for the operator, who knows better than the server which store is the right one."""

from __future__ import annotations

from collections import Counter

import anyio

from roost.blobs.choice import chosen
from roost.config import Settings
from roost.core.files.installation import Installation
from roost.serve.database import opened
from roost.serve.first_start import prepare


def adopt(settings: Settings, *, lost: bool) -> None:
    """Write this database's id into the store, and say what is in there of it."""
    prepare(settings.data)
    there, lacking = anyio.run(_adopt, settings, lost)
    print(f"the store now belongs to this database; it has {_in_words(there)}")
    if not lacking:
        return
    print(f"it lacks {_in_words(lacking)}")
    if lost:
        print("what it lacks is given up: workspaces begin without files, or with a server's own")
    else:
        print("sessions that need what it lacks wait, unless you give --lost")


def _in_words(counts: Counter[str]) -> str:
    return (
        f"the snapshots of {counts['workspaces']} workspaces, {counts['files']} files and "
        f"{counts['skills']} versions of skills"
    )


async def _adopt(settings: Settings, lost: bool) -> tuple[Counter[str], Counter[str]]:
    async with opened(settings) as (store, _):
        installation = Installation(store.catalog, store.workspaces, chosen(settings))
        return await installation.adopt(lost=lost)
