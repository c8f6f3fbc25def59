"""Rows of workspaces, on PostgreSQL: what differs from other databases."""

from __future__ import annotations

from typing import Final

from roost.stores.postgres.transaction import LIVES
from roost.stores.sql.database import rows_of
from roost.stores.sql.workspaces import SqlWorkspaces

# Whether a node that is not this one, nor an earlier one in its place, has a session or its files.
_ELSEWHERE: Final = f"""
SELECT EXISTS (
    SELECT 1 FROM sessions s JOIN nodes n ON n.id = s.owner OR (n.home <> '' AND n.home = s.home)
    WHERE s.id = $1 AND n.id <> $2 AND {LIVES}
    AND (n.home = '' OR n.home NOT IN (SELECT home FROM nodes WHERE id = $2))
)
"""


class PostgresWorkspaces(SqlWorkspaces):
    """The `ports.workspaces.Workspaces` on PostgreSQL."""

    async def elsewhere(self, session_id: str, node: str) -> bool:
        [(found,)] = await rows_of(self._reader, _ELSEWHERE, session_id, node)
        return bool(found)
