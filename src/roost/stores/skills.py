"""Skills as directories of the data directory."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from anyio import to_thread

from roost.domain.ids import mint
from roost.domain.skill import File
from roost.errors import NotFound, Unavailable

_UNFINISHED = "new_"


class FolderSkills:
    """`ports.skills.SkillFiles`. What a crash left unfinished is removed when this is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in root.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    async def keep(self, key: str, files: Sequence[File]) -> None:
        try:
            await to_thread.run_sync(self._keep, key, files)
        except OSError as error:
            raise Unavailable(f"the skill cannot be kept: {error.strerror}") from error

    async def where(self, key: str) -> Path | None:
        place = self._root / key
        return place if await to_thread.run_sync(place.is_dir) else None

    async def read(self, key: str) -> list[File]:
        place = await self.where(key)
        if place is None:
            raise NotFound(f"the files of {key} are gone")
        return await to_thread.run_sync(_read, place)

    async def drop(self, key: str) -> None:
        gone = partial(shutil.rmtree, self._root / key, ignore_errors=True)
        await to_thread.run_sync(gone)

    def _keep(self, key: str, files: Sequence[File]) -> None:
        made = self._root / mint(_UNFINISHED.rstrip("_"))
        try:
            made.mkdir()
            for file in files:
                _write(made, file)
            for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
                folder.chmod(0o755)
                _settle(folder)
            made.rename(self._root / key)
            _settle(self._root)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def _write(root: Path, file: File) -> None:
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as made:
        made.write(file.data)
        made.flush()
        os.fchmod(made.fileno(), 0o755 if file.executable else 0o644)
        os.fsync(made.fileno())


def _settle(folder: Path) -> None:
    """Make the names in a directory durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(place: Path) -> list[File]:
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    return [
        File(
            path.relative_to(place).as_posix(),
            path.read_bytes(),
            bool(path.stat().st_mode & stat.S_IXUSR),
        )
        for path in paths
    ]
