"""Rows of workspaces, on SQLite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import apsw
import msgspec
from msgspec.structs import astuple

from roost.domain.events import Micros
from roost.ports.workspaces import Heard, Workspace
from roost.stores.sql import workspaces
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

_LATEST: Final = workspaces.LATEST.format(h="h", join="JOIN heads h ON h.session = s.num")
_BY_ID: Final = f"{workspaces.SELECT} WHERE id = ?"

# Of a list, those that are known by nobody.
_STRANGERS: Final = """
SELECT x.value FROM json_each(?) AS x
WHERE NOT EXISTS (SELECT 1 FROM workspaces WHERE id = x.value)
AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = x.value)
"""

# A row, new or in the place of the one before.
_KEEP: Final = """
INSERT INTO workspaces
    (id, copy, generation, state, sequence, attempts, error, updated_at, holder)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
SET copy = excluded.copy, generation = excluded.generation, state = excluded.state,
    sequence = excluded.sequence, attempts = excluded.attempts, error = excluded.error,
    updated_at = excluded.updated_at, holder = excluded.holder
"""


class SqliteWorkspaces:
    """`ports.workspaces.Workspaces`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def find(self, workspace_id: str) -> Workspace | None:
        return await self._readers.ask(partial(_find, workspace_id))

    async def hold(self, workspace_id: str, copy: str, generation: int) -> Workspace:
        return await self._writer.do(partial(_hold, workspace_id, copy, generation))

    async def note(self, row: Workspace, weight: int | None = None) -> Workspace:
        return await self._writer.do(partial(_note, row, weight))

    async def weigh(self, workspace_id: str, weight: int) -> None:
        await self._writer.do(lambda tx: tx.ask(workspaces.WEIGH, (weight, workspace_id)))

    async def unweighed(self) -> Sequence[Workspace]:
        return await self._readers.ask(_unweighed)

    async def elsewhere(self, session_id: str, node: str) -> bool:
        """One server has this database, and it is the one that asks."""
        return False

    async def tenant_of(self, workspace_id: str) -> str:
        return await self._readers.ask(partial(_tenant_of, workspace_id))

    async def weight(self, tenant: str) -> int:
        return await self._readers.ask(partial(_weight, tenant))

    async def unsynced(self) -> Sequence[Workspace]:
        return await self._readers.ask(_unsynced)

    async def orphans(self, given_up_after: float = 3600) -> Sequence[Workspace]:
        since = time.time_ns() // 1000 - int(given_up_after * 1_000_000)
        return await self._readers.ask(partial(_orphans, since))

    async def stored(self, *, before: str | None = None, limit: int) -> Sequence[Workspace]:
        return await self._readers.ask(partial(_stored, before or "", limit))

    async def named(self) -> Sequence[tuple[str, Workspace]]:
        return await self._readers.ask(_named)

    async def strangers(self, workspace_ids: Sequence[str]) -> Sequence[str]:
        return await self._readers.ask(partial(_strangers, list(workspace_ids)))

    async def forget(self, workspace_id: str) -> None:
        await self._writer.do(partial(_forget, workspace_id))

    async def take(self, workspace_id: str, node: str) -> Workspace:
        return await self._writer.do(partial(_take, workspace_id, node))

    async def leave(self, workspace_id: str, node: str) -> None:
        await self._writer.do(lambda tx: tx.ask(workspaces.LEAVE, (workspace_id, node)))

    async def enter(self, workspace_id: str, session_id: str, since: Micros) -> bool:
        return await self._writer.do(partial(_enter, workspace_id, session_id, since))

    async def latest(self, workspace_id: str) -> Sequence[Heard]:
        return await self._readers.ask(partial(_latest, workspace_id))

    async def exit(self, session_id: str) -> None:
        await self._writer.do(lambda tx: tx.ask(workspaces.EXIT, (session_id,)))


def _hold(workspace_id: str, copy: str, generation: int, tx: Transaction) -> Workspace:
    row = workspaces.held(_before(workspace_id, tx), workspace_id, copy, generation, tx.now)
    tx.ask(_KEEP, astuple(row))
    return row


def _note(row: Workspace, weight: int | None, tx: Transaction) -> Workspace:
    row = workspaces.noted(_before(row.id, tx), row, tx.now)
    tx.ask(_KEEP, astuple(row))
    if weight is not None:
        tx.ask(workspaces.WEIGH, (weight, row.id))
    return row


def _take(workspace_id: str, node: str, tx: Transaction) -> Workspace:
    before = _before(workspace_id, tx) or workspaces.unheld(workspace_id)
    now = time.monotonic()
    row = workspaces.taken(before, node, tx.nodes.get(before.holder, now) > now, tx.now)
    tx.ask(_KEEP, astuple(row))
    return row


def _enter(workspace_id: str, session_id: str, since: Micros, tx: Transaction) -> bool:
    tx.ask(workspaces.WAIT, (session_id, workspace_id, since))
    if tx.ask(workspaces.FIRST, (workspace_id,)) != [(session_id,)]:
        return False
    tx.ask(workspaces.LET_IN, (session_id,))
    return True


def _before(workspace_id: str, tx: Transaction) -> Workspace | None:
    return workspaces.one_of(tx.ask(_BY_ID, (workspace_id,)))


def _forget(workspace_id: str, tx: Transaction) -> None:
    tx.ask(workspaces.FORGET, (workspace_id,))


def _find(workspace_id: str, db: apsw.Connection) -> Workspace | None:
    return workspaces.one_of(db.execute(_BY_ID, (workspace_id,)).fetchall())


def _tenant_of(workspace_id: str, db: apsw.Connection) -> str:
    return str(db.execute(workspaces.TENANT_OF, (workspace_id,)).get)


def _weight(tenant: str, db: apsw.Connection) -> int:
    return int(db.execute(workspaces.WEIGHT, (tenant,)).get)


def _latest(workspace_id: str, db: apsw.Connection) -> Sequence[Heard]:
    return workspaces.heard_of(db.execute(_LATEST, (workspace_id,)).fetchall())


def _unsynced(db: apsw.Connection) -> Sequence[Workspace]:
    return [workspaces.row_of(row) for row in db.execute(workspaces.UNSYNCED)]


def _unweighed(db: apsw.Connection) -> Sequence[Workspace]:
    return [workspaces.row_of(row) for row in db.execute(workspaces.UNWEIGHED)]


def _stored(before: str, limit: int, db: apsw.Connection) -> Sequence[Workspace]:
    return [
        workspaces.row_of(row) for row in db.execute(workspaces.STORED, (before, before, limit))
    ]


def _orphans(since: Micros, db: apsw.Connection) -> Sequence[Workspace]:
    return [workspaces.row_of(row) for row in db.execute(workspaces.ORPHANS, (since,))]


def _named(db: apsw.Connection) -> Sequence[tuple[str, Workspace]]:
    return [workspaces.with_tenant(row) for row in db.execute(workspaces.NAMED)]


def _strangers(workspace_ids: list[str], db: apsw.Connection) -> Sequence[str]:
    ids = msgspec.json.encode(workspace_ids).decode()
    return [id for (id,) in db.execute(_STRANGERS, (ids,))]
