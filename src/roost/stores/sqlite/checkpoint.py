"""Keeps the write-ahead log short: what is committed there is moved into the database now and then.

Done after the commit has been acknowledged, not inside it as SQLite would by itself. And SQLite
starts its log over only at an instant when nobody reads; under steady reading that instant may
never come, so that past a certain length the writer waits for those who read just then.
"""

from __future__ import annotations

import logging
from typing import Final

import apsw

_log = logging.getLogger(__name__)

_OFTEN: Final = 1_000
"""Pages in the log, 4 MB. Moving more at once is rarer, but holds the next commit up for longer."""

_AT_LAST: Final = 16_000


class Checkpoints:
    """Moves what one connection has written from the WAL into the database file."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._pages = 0
        db.set_wal_hook(self._note)

    def _note(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def tidy(self) -> None:
        """Move what is due. A failure harms nothing that was committed; the next one moves it."""
        if self._pages < _OFTEN:
            return
        mode = apsw.SQLITE_CHECKPOINT_PASSIVE
        if self._pages >= _AT_LAST:
            mode = apsw.SQLITE_CHECKPOINT_RESTART
        try:
            self._db.wal_checkpoint(mode=mode)
        except apsw.Error as error:
            _log.warning("cannot shorten the write-ahead log: %s", error)
        self._pages = 0
