"""How far sessions were shown, on PostgreSQL: in a table that no log is kept of."""

from __future__ import annotations

from typing import Final

from roost.stores.postgres.database import Database

_NOTE: Final = """
INSERT INTO shown AS s (session, seq, at) VALUES ($1, $2, extract(epoch FROM now()))
ON CONFLICT (session) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE s.seq < excluded.seq
"""
_UP_TO: Final = "SELECT seq FROM shown WHERE session = $1"


class PostgresMarks:
    """The `ports.marks.Marks` that all nodes of a PostgreSQL share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, session_id: str, seq: int) -> None:
        # Doing it twice changes nothing, so it is asked like a question.
        await self._database.ask(lambda db: db.execute(_NOTE, session_id, seq))

    async def up_to(self, session_id: str) -> int:
        found = await self._database.ask(lambda db: db.fetchval(_UP_TO, session_id))
        return int(found or 0)
