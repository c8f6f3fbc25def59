"""Files that say themselves whether they are whole, and a look at every snapshot for one that is not."""

from __future__ import annotations

import hashlib
import os

from roost.core.workspaces import Snapshots

WRITE = """
import hashlib, os, random, sys
who, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for number in range(count):
    body = os.urandom(random.choice([0, 10, 5000, 300000])).hex().encode()
    name = random.choice([f"{who}-{number % 7}", f"common-{number % 5}"])
    data = hashlib.sha256(body).hexdigest().encode() + b"\\n" + body
    # Over a new name, or in place: a file that is half written must be in no snapshot as it is.
    if random.random() < 0.7:
        with open(f"{folder}/.new-{who}", "wb") as file:
            file.write(data)
        os.chmod(f"{folder}/.new-{who}", 0o664)
        os.replace(f"{folder}/.new-{who}", f"{folder}/{name}")
    else:
        with open(f"{folder}/{who}-plain", "wb") as file:
            file.write(data)
"""
"""A program that writes so many files as `who`: most by rename, some in place."""


def is_whole(data: bytes) -> bool:
    digest, _, body = data.partition(b"\n")
    return digest == hashlib.sha256(body).hexdigest().encode()


async def look_at_all(snapshots: Snapshots, workspace: str) -> dict[int, dict[str, bytes]]:
    """What each snapshot has, by sequence; those that are written to under another name are left out."""
    found: dict[int, dict[str, bytes]] = {}
    for snapshot in (await snapshots.head(workspace)).snapshots:
        manifest = await snapshots.fetch.manifest(snapshot)
        files: dict[str, bytes] = {}
        async for entry in snapshots.fetch.entries(manifest):
            if entry.kind != "file":
                continue
            data = b""
            for part in entry.parts:
                if part.digest:
                    data += (await snapshots.fetch.parts(part.pack, [part]))[part.digest]
                else:
                    data += bytes(part.size)
            files[os.fsdecode(entry.path)] = data
        found[snapshot.sequence] = files
    return found


def torn_in(snapshots: dict[int, dict[str, bytes]]) -> list[tuple[int, str]]:
    """The files that were moved into place whole, and are not whole in some snapshot."""
    return [
        (sequence, name)
        for sequence, files in snapshots.items()
        for name, data in files.items()
        if not name.startswith(".") and not name.endswith("-plain") and not is_whole(data)
    ]
