"""The SQLite file that is moved. It is locked against servers, and never written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from roost.errors import DataDirLocked, SchemaTooNew, StartupError
from roost.stores.moving.tables import Row, Table
from roost.stores.sqlite import driver
from roost.stores.sqlite.migrate import migrations

_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"
_SCHEMA = "SELECT max(number) FROM migrations"

# Any change that a server makes shows in one of these, or in the number of rows.
_MARKS = (
    "SELECT count(*), sum(head), sum(queued), max(updated_at), max(sent_at) FROM heads",
    "SELECT sum(version), max(updated_at) FROM records",
    "SELECT sum(version), max(updated_at), min(sealed), max(sealed) FROM credentials",
    "SELECT max(created_at), max(revoked_at) FROM keys",
    "SELECT max(updated_at), sum(sequence), sum(attempts) FROM workspaces",
    "SELECT max(at) FROM pulse",
)
_LAST_NUMBER = "SELECT seq FROM sqlite_sequence WHERE name = ?"


class SqliteSource:
    """An SQLite database that is open to be copied."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    @property
    def tables(self) -> dict[str, set[str]]:
        """What it holds: tables and their columns."""
        return {name: set(self._columns(name)) for (name,) in self._db.execute(_TABLES)}

    def _columns(self, table: str) -> Iterator[str]:
        for _, name, *_ in self._db.execute(f"PRAGMA table_info({table})"):
            yield name

    def counts(self, tables: Sequence[Table]) -> dict[str, int]:
        """How many rows each table has."""
        return {
            table.name: self._db.execute(f"SELECT count(*) FROM {table.source}").get
            for table in tables
        }

    def fingerprint(self, counts: dict[str, int]) -> str:
        """The same as long as no server has worked with it."""
        marks = [self._db.execute(question).fetchall() for question in _MARKS]
        return msgspec.json.encode([sorted(counts.items()), marks]).decode()

    def rows(self, table: Table, after: Sequence[Any] = ()) -> Iterator[Row]:
        """The rows after that key, in the order of keys, as the new database has them."""
        key = ", ".join(table.key)
        beyond = f"WHERE ({key}) > ({', '.join('?' for _ in after)})" if after else ""
        sql = f"SELECT {', '.join(table.columns)} FROM {table.source} {beyond} ORDER BY {key}"
        for row in self._db.execute(sql, tuple(after)):
            yield table.typed(row)

    def last_number(self, table: Table) -> int:
        """The highest number that a row of it ever had."""
        found: int | None = self._db.execute(_LAST_NUMBER, (table.name,)).get
        return found or 0


@contextmanager
def opened(path: Path) -> Iterator[SqliteSource]:
    """The file, as long as the context lasts; no server can have it meanwhile.

    :raises StartupError: it is not there, a server has it, or it is not of this version
    """
    if not path.is_file():
        raise StartupError(
            f"there is no database {path}", hint="--from is sqlite:///PATH of a server's roost.db."
        )
    try:
        with driver.locked(path):
            db = driver.connect_reader(path)
            try:
                _check(db, path)
                yield SqliteSource(db)
            finally:
                db.close()
    except DataDirLocked as locked:
        raise DataDirLocked(locked.message, hint="Stop the server, then move.") from None
    except apsw.Error as error:
        raise StartupError(f"cannot read the database {path}: {error}") from error


def _check(db: apsw.Connection, path: Path) -> None:
    known = migrations()[-1].number
    names = [name for (name,) in db.execute(_TABLES)]
    applied = db.execute(_SCHEMA).get if "migrations" in names else None
    if not applied:
        raise StartupError(f"{path} is not a database of Roost")
    if applied > known:
        raise SchemaTooNew(f"{path} is at schema {applied}, this Roost knows {known}")
    if applied < known:
        raise StartupError(
            f"{path} is at schema {applied}, and only schema {known} can be moved",
            hint="Start this version's server on it once, which brings it up to date, and stop it.",
        )
