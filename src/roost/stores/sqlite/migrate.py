"""Brings a database up to this code's schema: numbered files, each applied once, in order."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import apsw

from roost.errors import SchemaTooNew


class Migration(NamedTuple):
    """One step: `migrations/0001_first.sql` is number 1."""

    number: int
    name: str
    script: str


_HISTORY = """
CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)
"""


def migrations() -> list[Migration]:
    """The steps this code knows, in order."""
    folder = resources.files("roost.stores.sqlite") / "migrations"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [Migration(int(n[:4]), n, (folder / n).read_text("utf-8")) for n in names]


def migrate(db: apsw.Connection) -> None:
    """Apply what is missing, all or nothing.

    :raises SchemaTooNew: the database has steps this code does not know
    """
    known = migrations()
    with db:
        db.execute(_HISTORY)
        applied = db.execute("SELECT coalesce(max(number), 0) FROM migrations").get
        if applied > known[-1].number:
            raise SchemaTooNew(
                f"the database is at schema {applied}, this Roost knows {known[-1].number}"
            )
        for step in known:
            if step.number > applied:
                db.execute(step.script)
                db.execute("INSERT INTO migrations VALUES (?, ?)", (step.number, step.name))
