"""Files that say themselves whether they are whole, and a look at every snapshot for one that is not.

What a snapshot has of a file is what the file was at one moment. Of one that was moved into place that is
all of it. Of one that is written in place it may be a beginning, never parts of two writings; of one that is
appended to, all lines up to some one.
"""

from __future__ import annotations

import hashlib
import os
import re

from roost.core.snapshots.snapshots import Snapshots

WRITE = """
import hashlib, os, random, sys, time
who, count, folder, pause = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
run = os.urandom(8).hex()
for number in range(count):
    time.sleep(pause)
    seed, size = os.urandom(16).hex(), random.choice([0, 10, 5000, 600000])
    head, body = f"{seed} {size}\\n", hashlib.sha256(seed.encode()).hexdigest() * (size // 64 + 1)
    data = (head + body[:size]).encode()
    how = random.choice(["moved", "moved", "in place", "appended"])
    if how == "moved":
        with open(f"{folder}/.new-{who}", "wb") as file:
            file.write(data)
        os.chmod(f"{folder}/.new-{who}", 0o664)
        name = random.choice([f"{who}-{number % 7}", f"common-{number % 5}"])
        os.replace(f"{folder}/.new-{who}", f"{folder}/{name}")
    elif how == "in place":
        with open(f"{folder}/{who}-plain", "wb") as file:
            for at in range(0, len(data), 100_000):
                file.write(data[at : at + 100_000])
    else:
        with open(f"{folder}/{who}-log", "ab", buffering=0) as file:
            file.write(f"{run} {number} {hashlib.sha256(f'{run} {number}'.encode()).hexdigest()}\\n".encode())
"""
"""A program that writes so many files as `who`: by rename, in place from the beginning, at the end. Its
arguments: who, how many, where, seconds before each.
"""

_LINE = re.compile(rb"(\w+ \d+) (\w{64})")


def is_beginning(data: bytes) -> bool:
    """Of one writing, or all of it."""
    head, newline, body = data.partition(b"\n")
    if not newline:
        return re.fullmatch(rb"\w{0,32}( \d{0,6})?", head) is not None
    seed, size = head.split()
    expected = hashlib.sha256(seed).hexdigest().encode() * (int(size) // 64 + 1)
    return expected[: int(size)].startswith(body)


def is_whole(data: bytes) -> bool:
    head, newline, body = data.partition(b"\n")
    return bool(newline) and is_beginning(data) and len(body) == int(head.split()[1])


def has_whole_lines(data: bytes) -> bool:
    found = [_LINE.fullmatch(line) for line in data.split(b"\n")[:-1]]
    good = [one and hashlib.sha256(one[1]).hexdigest().encode() == one[2] for one in found]
    return all(good) and (not data or data.endswith(b"\n"))


async def look_at_all(snapshots: Snapshots, workspace: str) -> dict[int, dict[str, bytes]]:
    """What each snapshot has, by sequence."""
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
    """The files that are not, in some snapshot, what they have been at some moment."""
    return [
        (sequence, name)
        for sequence, files in snapshots.items()
        for name, data in files.items()
        if not _has_been(name, data)
    ]


def _has_been(name: str, data: bytes) -> bool:
    if name.endswith("-log"):
        return has_whole_lines(data)
    in_place = name.startswith(".") or name.endswith("-plain")
    return is_beginning(data) if in_place else is_whole(data)
