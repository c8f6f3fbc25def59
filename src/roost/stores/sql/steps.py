"""The steps of a schema: numbered files beside a store, each applied once, in order."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

from roost.errors import SchemaTooNew


class Migration(NamedTuple):
    """One step: `migrations/0001_first.sql` is number 1."""

    number: int
    name: str
    script: str

    @property
    def oldest(self) -> int:
        """The newest step that code must know to work with this one: it says so, or it is its own."""
        said = _WORKS_WITH.search(self.script)
        return int(said[1]) if said else self.number


_WORKS_WITH = re.compile(r"^-- works with: (\d+)$", re.MULTILINE)

HISTORY = """
CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)
"""
APPLIED = "SELECT coalesce(max(number), 0) FROM migrations"
RECORD = "INSERT INTO migrations VALUES (?, ?)"


def steps(package: str) -> list[Migration]:
    """The steps a store knows, in order."""
    folder = resources.files(package) / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [Migration(int(n[:4]), n, (folder / n).read_text("utf-8")) for n in names]


def missing(known: list[Migration], applied: int, floor: int | None = None) -> list[Migration]:
    """What is to be applied. `floor` is the step that code must know to work with those not known here.

    :raises SchemaTooNew: the database has steps that are not known, and need code that is newer
    """
    newest = known[-1].number
    if applied > newest and (floor is None or floor > newest):
        needs = "" if floor is None else f" and would have to know {floor}"
        raise SchemaTooNew(f"the database is at schema {applied}, this Roost knows {newest}{needs}")
    return [step for step in known if step.number > applied]
