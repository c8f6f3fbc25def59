"""Trees to take snapshots of: made, changed at random, and looked at from outside."""

# Names are bytes here.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH123, PTH211

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import Any

from roost.core.snapshots.restore import OnProgress, restored
from roost.core.snapshots.snapshots import Snapshots
from roost.domain.snapshot import Snapshot
from roost.sandboxes.tree import LocalTree

QUICK = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""Where files cost no disk: what is tested there is not whether they are durable."""

UIDS = range(200_000, 265_536)
NAMES = [
    b"a",
    b"b.txt",
    b"B",
    b"a-b",
    b" ",
    b"new\nline",
    b"\xff\xfe",
    "ä€".encode(),
    b"-rf",
    b"x" * 255,
]


def tree(place: Path) -> LocalTree:
    return LocalTree(place, place.parent / "notes", UIDS)


async def put_back(
    snapshots: Snapshots, snapshot: Snapshot, place: Path, on_progress: OnProgress | None = None
) -> None:
    async with restored(snapshots.fetch, snapshot, tree(place), on_progress) as whole:
        whole.staging.replace(keep=False)


def picture(place: Path) -> dict[bytes, Any]:
    """Everything that can be seen of a tree and that a snapshot promises to keep."""
    top = os.fsencode(place)
    paths = [b"."]
    for folder, folders, files in os.walk(top):
        paths += [os.path.relpath(os.path.join(folder, name), top) for name in [*folders, *files]]
    names: dict[tuple[int, int], bytes] = {}
    return {path: _seen(os.path.join(top, path), names, path) for path in sorted(paths)}


def _seen(path: bytes, names: dict[tuple[int, int], bytes], relative: bytes) -> Any:
    status = os.lstat(path)
    content: Any = None
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        same = names.setdefault((status.st_dev, status.st_ino), relative)
        with open(path, "rb") as file:
            content = (same, file.read())
    return status.st_mode, status.st_mtime_ns, content


def _not_through_links(path: str, flags: int) -> int:
    """There may be a link of that name, and it may lead to a file of the machine's."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class TreeChanger:
    """Changes a tree, in any of the ways a program might."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place = os.fsencode(place)
        self._random = random.Random(seed)
        place.mkdir(exist_ok=True)

    def work(self, steps: int) -> None:
        ways = [self._file] * 4 + [self._folder] * 2
        ways += [self._sparse, self._symlink, self._link, self._mode, self._move, self._remove]
        ways += [self._touch, self._append, self._same_size]
        for _ in range(steps):
            try:
                self._random.choice(ways)()
            except OSError:
                continue  # there is something there, or a path is too long: then not

    def _any(self, *, folders: bool) -> bytes:
        found = [self._place] if folders else []
        for folder, below, files in os.walk(self._place):
            names = below if folders else files
            paths = [os.path.join(folder, name) for name in sorted(names)]
            found += [path for path in paths if not os.path.islink(path)]
        if not found:
            raise OSError
        return self._random.choice(found)

    def _new(self) -> bytes:
        return os.path.join(self._any(folders=True), self._random.choice(NAMES))

    def _bytes(self) -> bytes:
        size = self._random.choice([0, 1, 100, 5_000, 70_000, 300_000])
        return self._random.choice([bytes(size), self._random.randbytes(size)])

    def _file(self) -> None:
        with open(self._new(), "wb", opener=_not_through_links) as file:
            file.write(self._bytes())

    def _folder(self) -> None:
        os.mkdir(self._new())

    def _sparse(self) -> None:
        with open(self._new(), "wb", opener=_not_through_links) as file:
            for _ in range(self._random.randrange(3)):
                file.seek(self._random.randrange(3_000_000))
                file.write(self._bytes())
            file.truncate(self._random.randrange(4_000_000))

    def _symlink(self) -> None:
        target = self._random.choice([b"/etc/no-such-file", b"../../..", b"a", b"\xff/no", b"."])
        os.symlink(target, self._new())

    def _link(self) -> None:
        os.link(self._any(folders=False), self._new())

    def _mode(self) -> None:
        path = self._any(folders=self._random.random() < 0.3)
        mode = self._random.choice([0o600, 0o755, 0o444, 0o700, 0o1777])
        if os.path.isdir(path) and os.geteuid() != 0:
            mode |= 0o700  # only root gets into the others, and a snapshot leaves those out
        os.chmod(path, mode)

    def _move(self) -> None:
        os.rename(self._any(folders=self._random.random() < 0.3), self._new())

    def _remove(self) -> None:
        os.unlink(self._any(folders=False))

    def _touch(self) -> None:
        moment = self._random.randrange(2**31 * 10**9)
        os.utime(self._any(folders=self._random.random() < 0.3), ns=(moment, moment))

    def _append(self) -> None:
        with open(self._any(folders=False), "ab") as file:
            file.write(b"more")

    def _same_size(self) -> None:
        """Other content, and nothing in its size or time of change that would say so."""
        path = self._any(folders=False)
        status = os.stat(path)
        with open(path, "r+b") as file:
            file.write(self._random.randbytes(min(status.st_size, 1000)))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
