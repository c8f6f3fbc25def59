"""Sessions as records, on SQLite: what is read again and again is kept in memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from roost.domain.events import Entry
from roost.domain.session import Session
from roost.stores.sql.database import Question
from roost.stores.sql.rows import PENDING, SESSION_COLUMNS, Row, Settled, session_of
from roost.stores.sql.sessions import WHOLE, SqlSessions
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.readers import SqliteReaders
from roost.stores.sqlite.writer import SqliteWriter

T = TypeVar("T")
_MOST_SEEN: Final = 4096  # sessions
_MOST_SEEN_BYTES: Final = 8 * 1024 * 1024  # of their specs, as they are stored


class _SeenSession(NamedTuple):
    """A session as it was last read, and which of its specs that was."""

    session: Session
    spec_version: int
    size: int


class SqliteSessions(SqlSessions):
    """The `ports.sessions.Sessions` on SQLite."""

    SELECT = f"SELECT {SESSION_COLUMNS}, p.spec FROM {WHOLE}"
    WAITS = f"instr(s.rest, CAST('{PENDING}' AS BLOB)) > 0"

    def __init__(self, writer: SqliteWriter, readers: SqliteReaders, clock: Clock) -> None:
        super().__init__(writer, readers)
        self._sqlite = writer
        self._readers = readers
        self._clock = clock
        self._last_seen: OrderedDict[str, _SeenSession] = OrderedDict()
        self._seen_bytes = 0

    def session_of(self, row: Row) -> Session:
        return session_of(row, self._clock.now())

    def known(self, tenant: str, session_id: str) -> Session | None:
        known = self._known(session_id)
        return known if known is not None and known.tenant == tenant else None

    async def find(self, session_id: str) -> Session:
        if (known := self._known(session_id)) is not None:
            return known
        settled = self._sqlite.settled(session_id)
        found, size = await self._look_at(session_id, lambda rows: self._found(rows, session_id))
        return self._seen(settled, found, size)

    async def with_inputs(self, session_id: str) -> tuple[Session, list[Entry]]:
        if (known := self._known(session_id)) is not None and not known.state.queued:
            return known, []
        settled = self._sqlite.settled(session_id)
        (found, size), inputs = await self._look_at(
            session_id, lambda rows: self._found_with_inputs(rows, session_id)
        )
        return self._seen(settled, found, size), inputs

    async def _look_at(self, session_id: str, question: Question[T]) -> T:
        if self._sqlite.remembers(session_id):
            return await self._readers.read_here(question)
        return await self._readers.read(question)

    def _known(self, session_id: str) -> Session | None:
        """The session as it is, if the writer knows that, with the spec that was last read."""
        seen, settled = self._last_seen.get(session_id), self._sqlite.settled(session_id)
        if seen is None or settled is None or seen.spec_version != settled.spec_version:
            return None
        self._last_seen.move_to_end(session_id)
        now = self._clock.now()
        return replace(
            seen.session, state=settled.state, updated_at=settled.updated_at, read_at=now
        )

    def _seen(self, before: Settled | None, found: Session, size: int) -> Session:
        """Remember its spec under the version that was committed `before` it was read: if it was changed
        meanwhile, that is another one already.
        """
        if before is not None:
            self._remember(_SeenSession(found, before.spec_version, size))
        return found

    def _remember(self, seen: _SeenSession) -> None:
        known = self._last_seen
        if (last := known.pop(seen.session.id, None)) is not None:
            self._seen_bytes -= last.size
        known[seen.session.id] = seen
        self._seen_bytes += seen.size
        while known and (len(known) > _MOST_SEEN or self._seen_bytes > _MOST_SEEN_BYTES):
            self._seen_bytes -= known.popitem(last=False)[1].size
