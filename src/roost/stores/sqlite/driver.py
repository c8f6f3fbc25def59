"""The one place that knows the driver: how a file is opened, and what the driver's errors mean."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from roost.errors import DataDirLocked, RoostError, Unavailable

# The world refused, not the statement: the same call may work in a while.
_REFUSED_BY_THE_WORLD = (
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
    apsw.NoMemError,
    apsw.CorruptError,
    apsw.NotADBError,
)

_PATIENCE = 5_000
"""Milliseconds to wait for somebody who looks at the file with another program."""

_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",  # acknowledged means on disk, also when the power goes
    "wal_autocheckpoint = 0",  # see `checkpoint`
)


MOST_ROWS: Final = 64
"""That the writer hands over with one statement; there is a statement for each number of them."""
_STATEMENTS: Final = 4 * MOST_ROWS  # that the writer's connection keeps ready


def explained(error: Exception) -> Exception:
    """The error as callers may see it: the driver's become Roost's, all others stay."""
    if not isinstance(error, apsw.Error):
        return error
    if isinstance(error, _REFUSED_BY_THE_WORLD):
        ours: RoostError = Unavailable(
            f"the database refused: {error}",
            hint="Nothing was kept. Look at the free space and the health of the disk.",
        )
    else:
        ours = RoostError(f"internal database error: {error}")
    ours.__cause__ = error
    return ours


def connect(path: Path) -> apsw.Connection:
    """The writer's connection: the only one that writes and the only one that checkpoints."""
    db = apsw.Connection(str(path), statementcachesize=_STATEMENTS)
    db.set_busy_timeout(_PATIENCE)
    try:
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
    except BaseException:
        db.close()
        raise
    return db


def connect_reader(path: Path) -> apsw.Connection:
    """A connection that cannot write, and never checkpoints."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.set_busy_timeout(_PATIENCE)
    return db


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep every other process away from the file, as long as the context lasts.

    :raises DataDirLocked: another one has it
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirLocked(f"another Roost server has {path} open") from None
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would make it readable
        yield
    finally:
        os.close(descriptor)
