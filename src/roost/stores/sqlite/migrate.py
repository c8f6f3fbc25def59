"""Brings a database up to this code's schema, all or nothing."""

from __future__ import annotations

import apsw

from roost.stores.sql.steps import APPLIED, HISTORY, RECORD, Migration, missing, steps


def migrations() -> list[Migration]:
    """The steps this code knows, in order."""
    return steps("roost.stores.sqlite")


def migrate(db: apsw.Connection) -> None:
    """Apply what is missing, all or nothing.

    :raises SchemaTooNew: the database has steps this code does not know
    """
    with db:
        db.execute(HISTORY)
        for step in missing(migrations(), db.execute(APPLIED).get):
            db.execute(step.script)
            db.execute(RECORD, (step.number, step.name))
