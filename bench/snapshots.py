"""How long snapshots take and how much they store, beside other ways to keep a tree, in the same minute.

    python bench/snapshots.py [--quick]

A workspace of 5,000 files and 100 MB, part source text, part incompressible: stored once in full, then
again after five files have changed, then restored to an empty directory. Everything goes to a folder on
the same disk. Ways that are not installed are left out, by name. Each figure is the median of several
rounds, in which the ways take turns, so that all of them have the same machine. On a machine that has
other work to do, look at the processor's seconds rather than at the clock's.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import anyio

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.restore import restored
from roost.core.snapshots.snapshots import Snapshots
from roost.disk import remove
from roost.domain.snapshot import Snapshot
from roost.sandboxes.tree import LocalTree

FILES, BYTES, CHANGED = 5_000, 100 << 20, 5
LINES = [
    b"def handle(request, response):\n",
    b"    return response.with_status(200)\n",
    b"import collections.abc\n",
    b"class Example:\n",
]


def grow(home: Path, files: int, total: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for number in range(files):
        folder = home / f"package{number % 50}" / f"module{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file{number}.py").write_bytes(content(rng, total // files))


def content(rng: random.Random, size: int) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(size)
    words = [
        rng.choice(LINES) if rng.random() < 0.8 else rng.randbytes(9).hex().encode() + b"\n"
        for _ in range(size // 25)
    ]
    return b"".join(words)[:size]


class Way:
    """One way to keep a tree."""

    name = ""
    program: str | None = None

    def __init__(self, folder: Path, home: Path) -> None:
        self.home = home
        self.kept = folder / "kept"
        self.again = folder / "again"
        self.kept.mkdir(parents=True)

    def store(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError


class Roost(Way):
    name = "roost"

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder, home)
        self._snapshots = Snapshots(FolderBlobs(self.kept))
        self._notes = folder / "notes"
        self._newest: Snapshot | None = None

    def store(self) -> None:
        anyio.run(self._store)

    def restore(self) -> None:
        anyio.run(self._restore)

    async def _store(self) -> None:
        taken = await self._snapshots.take("w", self._tree(self.home), 1)
        self._newest = taken.snapshot

    async def _restore(self) -> None:
        assert self._newest is not None
        again = self._tree(self.again)
        async with restored(self._snapshots.fetch, self._newest, again) as whole:
            whole.staging.replace(keep=False)

    def _tree(self, place: Path) -> LocalTree:
        return LocalTree(place, self._notes, range(200_000, 265_536))


def run(command: str, **environ: str) -> None:
    subprocess.run(
        ["sh", "-c", command], check=True, env={**os.environ, **environ}, capture_output=True
    )


class Tar(Way):
    name, program = "tar | zstd", "zstd"

    def store(self) -> None:
        run(f"tar -C {self.home} -c . | zstd -q -f -3 -o {self.kept}/tar.zst")

    def restore(self) -> None:
        self.again.mkdir()
        run(f"zstd -q -d -c {self.kept}/tar.zst | tar -C {self.again} -x")


class Rsync(Way):
    name, program = "rsync", "rsync"

    def store(self) -> None:
        run(f"rsync -a --delete {self.home}/ {self.kept}/copy/")

    def restore(self) -> None:
        run(f"rsync -a {self.kept}/copy/ {self.again}/")


class Restic(Way):
    name, program = "restic", "restic"

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder, home)
        self._about = {
            "RESTIC_REPOSITORY": str(self.kept),
            "RESTIC_PASSWORD": "bench",
            "RESTIC_CACHE_DIR": str(folder / "cache"),
        }
        run("restic init -q", **self._about)

    def store(self) -> None:
        run(f"cd {self.home} && restic backup -q .", **self._about)

    def restore(self) -> None:
        run(f"restic restore -q latest --target {self.again}", **self._about)


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def processor_seconds() -> float:
    """What this process and its children have used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(name: str, work: Callable[[], None]) -> dict[str, float]:
    start, used = time.perf_counter(), processor_seconds()
    work()
    seconds = time.perf_counter() - start
    return {f"{name} s": seconds, f"{name} cpu": processor_seconds() - used}


def round_of(kind: type[Way], folder: Path, home: Path, number: int) -> dict[str, float]:
    """One way, once through everything."""
    found: dict[str, float] = {}
    way = kind(folder, home)
    empty = size_of(way.kept)
    found |= timed("first", way.store)
    found["first MB"] = (size_of(way.kept) - empty) / 1e6
    rng = random.Random(number)
    for file in rng.sample(sorted(home.rglob("*.py")), CHANGED):
        file.write_bytes(content(rng, 20_000))
    time.sleep(0.2)
    full = size_of(way.kept)
    found |= timed("again", way.store)
    found["again MB"] = abs(size_of(way.kept) - full) / 1e6
    found |= timed("restore", way.restore)
    remove(way.again)
    remove(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    files, total, rounds = (500, 10 << 20, 1) if quick else (FILES, BYTES, 3)
    ways: list[type[Way]] = []
    for way in (Roost, Tar, Rsync, Restic):
        if way.program is None or shutil.which(way.program):
            ways.append(way)
        else:
            print(f"{way.name} is left out: {way.program} is not installed")
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        grow(home, files, total)
        time.sleep(0.2)
        for number in range(rounds):
            for way in ways:
                at = Path(folder, f"{way.name[:3]}{number}")
                for figure, value in round_of(way, at, home, number).items():
                    results[way.name][figure].append(value)
    show(results, files, total)


def show(results: dict[str, dict[str, list[float]]], files: int, total: int) -> None:
    figures = ["first s", "first cpu", "first MB", "again s", "again cpu", "again MB"]
    figures += ["restore s", "restore cpu"]
    print(f"{files} files, {total / 1e6:.0f} MB; then {CHANGED} files changed; medians")
    print(f"{'':12}" + "".join(f"{figure:>12}" for figure in figures))
    for name, found in results.items():
        print(f"{name:12}" + "".join(f"{median(found[figure]):12.3f}" for figure in figures))
    ours = results["roost"]
    for name, what, aim in (("restic", "again", 0.25), ("tar | zstd", "restore", 1.2)):
        if name in results:
            clock, processor = (
                median(a / b for a, b in zip(ours[figure], results[name][figure], strict=True))
                for figure in (f"{what} s", f"{what} cpu")
            )
            print(
                f"{what} beside {name}: {clock:.2f} times by the clock, {processor:.2f} by the "
                f"processor (aim: {aim} at most)"
            )


if __name__ == "__main__":
    main()
