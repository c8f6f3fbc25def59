"""The steps of a schema: numbered files beside a store, each applied once, in order."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from roost.errors import SchemaTooNew


class Migration(NamedTuple):
    """One step: `migrations/0001_first.sql` is number 1."""

    number: int
    name: str
    script: str


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


def missing(known: list[Migration], applied: int) -> list[Migration]:
    """What is to be applied. :raises SchemaTooNew: the database has steps that are not known"""
    if applied > known[-1].number:
        raise SchemaTooNew(
            f"the database is at schema {applied}, this Roost knows {known[-1].number}"
        )
    return [step for step in known if step.number > applied]
