"""Where the files of skills are: written once, shown to sandboxes, read back whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from roost.domain.skill import SkillFile


class SkillFiles(Protocol):
    """Directories of files by key. A key is an id that was minted for it, and is never used again."""

    async def keep(self, key: str, files: Sequence[SkillFile]) -> None:
        """Write a directory, durable and whole, or nothing. Called before anybody hears of the key.

        :raises Unavailable: the disk refused :raises BlobsFailed: the store did
        """
        ...

    async def where(self, key: str) -> Path | None:
        """The directory, readable for everybody who is shown it; None if it is damaged, or not there.

        :raises BlobsFailed: that cannot be said now, or it should be there and is not
        """
        ...

    async def read(self, key: str) -> list[SkillFile]:
        """Its files, by path. :raises NotFound: :raises BlobsFailed: they should be there, and are not"""
        ...

    async def check(self) -> None:
        """Called before a record goes whose directory is then dropped. :raises BlobsFailed: not now"""
        ...

    async def drop(self, key: str) -> None:
        """Remove it; nothing happens if it is not there."""
        ...
