"""Token buckets on PostgreSQL, by the database's clock: one statement, in a table that no log is kept of."""

from __future__ import annotations

from typing import Final

from roost.ports.buckets import TokensTaken
from roost.stores.postgres.database import Database

# What has come in since the last time, up to the limit; then as many whole tokens as are wanted and there.
_NOW: Final = "extract(epoch FROM statement_timestamp())::float8"
_FILLED: Final = f"least($2::float8, b.tokens + greatest(0, {_NOW} - b.at) * $2::float8 / 60)"
_TAKE: Final = f"""
INSERT INTO buckets AS b (name, tokens, took, at)
VALUES ($1, $2::float8 - least($3::float8, $2::float8), least($3::float8, $2::float8), {_NOW})
ON CONFLICT (name) DO UPDATE SET
    took = least($3::float8, floor({_FILLED})),
    tokens = {_FILLED} - least($3::float8, floor({_FILLED})),
    at = greatest(b.at, {_NOW})
RETURNING took, tokens
"""


class PostgresBuckets:
    """The `ports.buckets.Buckets` that all nodes of a PostgreSQL share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, name: str, limit: int, most: int) -> TokensTaken:
        # Not as other writes: if the connection breaks it is done again, and somebody has a little less.
        row = await self._database.ask(
            lambda db: db.fetchrow(_TAKE, name, float(limit), float(most))
        )
        return TokensTaken(int(row[0]), row[1])
