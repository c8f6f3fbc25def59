"""The files of skills: kept in the blob store, and unpacked on each machine that shows them."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
from anyio import to_thread

from roost.disk import make_folder, remove, sync_folder
from roost.domain.skill import SkillFile, skill_key
from roost.errors import NotFound, SnapshotCorrupt, Unavailable
from roost.ids import mint
from roost.ports.blobs import Blobs

_log = logging.getLogger(__name__)
_UNFINISHED = "new_"


class BlobSkills:
    """`ports.skills.SkillFiles`. All servers have the same; `here` is what this one has unpacked.

    Nothing is lost with that: it is emptied when this is made, and filled as sandboxes need it.
    """

    def __init__(self, blobs: Blobs, here: FolderSkills) -> None:
        self._blobs = blobs
        self._here = here
        here.clear()

    async def keep(self, key: str, files: Sequence[SkillFile]) -> None:
        packed = await to_thread.run_sync(msgspec.msgpack.encode, list(files))
        await self._blobs.put(skill_key(key), packed)

    async def where(self, key: str) -> Path | None:
        if place := await self._here.where(key):
            return place
        try:
            files = await self.read(key)
        except SnapshotCorrupt as error:
            _log.error("%s", error.message, extra={"action": "skill"})
            return None
        try:
            await self._here.keep(key, files)
        except Unavailable:
            if not await self._here.where(key):  # nobody else was faster
                raise
        return await self._here.where(key)

    async def read(self, key: str) -> list[SkillFile]:
        """The files of a stored skill. :raises SnapshotCorrupt: it is not what was kept"""
        return await to_thread.run_sync(_unpacked, await self._blobs.get(skill_key(key)))

    async def check(self) -> None:
        await self._blobs.delete([])

    async def drop(self, key: str) -> None:
        await self._blobs.delete([skill_key(key)])
        await self._here.drop(key)


class FolderSkills:
    """The same as directories of one machine. What a crash left unfinished is removed when this is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        make_folder(root, mode=0o700)
        for left in root.glob(f"{_UNFINISHED}*"):
            _remove(left)

    def clear(self) -> None:
        """Forget everything that is kept here."""
        for left in self._root.iterdir():
            _remove(left)

    async def keep(self, key: str, files: Sequence[SkillFile]) -> None:
        try:
            await to_thread.run_sync(self._keep, key, files)
        except OSError as error:
            raise Unavailable(f"the skill cannot be kept: {error.strerror}") from error

    async def where(self, key: str) -> Path | None:
        place = self._root / key
        return place if await to_thread.run_sync(place.is_dir) else None

    async def read(self, key: str) -> list[SkillFile]:
        place = await self.where(key)
        if place is None:
            raise NotFound(f"the files of {key} are gone")
        return await to_thread.run_sync(_read, place)

    async def check(self) -> None:
        """Nothing can be wrong with a directory that is made anew at each start."""

    async def drop(self, key: str) -> None:
        await to_thread.run_sync(_remove, self._root / key)

    def _keep(self, key: str, files: Sequence[SkillFile]) -> None:
        made = self._root / mint(_UNFINISHED.rstrip("_"))
        try:
            made.mkdir()
            for file in files:
                _write(made, file)
            for folder in (made, *(path for path in made.rglob("*") if path.is_dir())):
                folder.chmod(0o755)
                sync_folder(folder)
            made.rename(self._root / key)
            sync_folder(self._root)
        except BaseException:
            _remove(made)
            raise


def _remove(place: Path) -> None:
    """Remove it, or leave it: it is removed when the next server starts."""
    try:
        remove(place)
    except OSError as error:
        _log.warning("cannot remove %s: %s", place, error, extra={"action": "skill"})


def _unpacked(packed: bytes) -> list[SkillFile]:
    """The files of a stored skill, checked.

    :raises SnapshotCorrupt: it is not what was kept, or leads out of its directory
    """
    try:
        files = msgspec.msgpack.decode(packed, type=list[SkillFile])
    except msgspec.DecodeError:
        raise SnapshotCorrupt("the files of a skill cannot be read") from None
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise SnapshotCorrupt("the files of a skill lead elsewhere")
    return files


def _write(root: Path, file: SkillFile) -> None:
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as made:
        made.write(file.data)
        made.flush()
        os.fchmod(made.fileno(), 0o755 if file.executable else 0o644)
        os.fsync(made.fileno())


def _read(place: Path) -> list[SkillFile]:
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    return [
        SkillFile(
            path.relative_to(place).as_posix(),
            path.read_bytes(),
            bool(path.stat().st_mode & stat.S_IXUSR),
        )
        for path in paths
    ]
