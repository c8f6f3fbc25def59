"""Sessions as records, on PostgreSQL: what differs from other databases."""

from __future__ import annotations

from roost.domain.session import Session
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import NOW
from roost.stores.postgres.sweep import Sweeper
from roost.stores.postgres.writer import PostgresWriter
from roost.stores.sql.rows import PENDING, SESSION_COLUMNS, Row, cached_of, spec_of
from roost.stores.sql.sessions import WHOLE, SqlSessions


class PostgresSessions(SqlSessions):
    """The `ports.sessions.Sessions` on PostgreSQL."""

    SELECT = f"SELECT {SESSION_COLUMNS}, p.spec, {NOW} FROM {WHOLE}"
    WAITS = f"position('{PENDING}'::bytea IN s.rest) > 0"

    def __init__(self, writer: PostgresWriter, database: Database, sweep: Sweeper) -> None:
        super().__init__(writer, database)
        self._sweep = sweep

    def session_of(self, row: Row) -> Session:
        *columns, spec, now = row
        session = cached_of(tuple(columns))
        return session.session(spec_of(spec), max(now, session.updated_at))

    async def delete(self, tenant: str, session_id: str) -> None:
        await super().delete(tenant, session_id)
        self._sweep.soon()
