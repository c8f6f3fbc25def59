"""Archives of sessions on this machine's disk, written and read beside everything else."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from roost.domain.archive import Card
from roost.domain.events import Entry, Micros
from roost.ports.tree import Tree


class Bench(Protocol):
    """A place of its own to put an archive together, or to take one apart. All methods block."""

    @property
    def tree(self) -> Tree:
        """The session's files, as a tree."""
        ...

    def log(self, entries: Iterable[Entry]) -> None:
        """Add entries to the log."""
        ...

    def pack(self, card: Card) -> BinaryIO:
        """Write the archive of what is here: a file that outlives the bench, to be read and closed."""
        ...

    def unpack(self, archive: BinaryIO, now: Micros) -> Card:
        """Put what an archive has here; nothing of it is believed before all of it is checked.

        :raises BadArchive: it is damaged, hostile, or of a newer format
        :raises TooLarge: there is too much in it
        """
        ...

    def entries(self) -> Iterable[Entry]:
        """The log, from its beginning each time it is asked for."""
        ...


class Archives(Protocol):
    """Where archives are worked on."""

    def bench(self) -> AbstractContextManager[Bench]:
        """A new bench, which is gone with all on it when the context ends."""
        ...
