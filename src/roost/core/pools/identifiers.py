"""Identifiers of pools: each is a session, from the first time it is used until it cools down.

What is written, in this order:

1. a record of the identifier, with a word of its own;
2. a session, under a receipt of that word;
3. the session's id in the record.

Killed between any two, the next use goes on from there: 2 again is the same session. When an identifier is let go,
its session is deleted first and its record then; a record whose session is gone is made anew.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from roost.core.pools.pools import Pools
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.write.intake import Intake
from roost.domain import pool as rules
from roost.domain.events import Micros
from roost.domain.session import Session
from roost.errors import Conflict, Forbidden, NotFound, PoolFull, RoostError, SessionBusy
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.notifier import Notifier

KIND: Final = "pool_session"
_PAGE: Final = 100
_SWEEPS_EVERY: Final = 5.0  # seconds between looks at what has cooled down
_LATER: Final = 30_000_000  # microseconds until the next look at one that works
_STOPS_WITHIN: Final = 60.0
_log = logging.getLogger(__name__)


class PoolSessions:
    """Finds the session of an identifier, makes it, and lets it go."""

    def __init__(
        self,
        catalog: Catalog,
        pools: Pools,
        lifecycle: Lifecycle,
        intake: Intake,
        notifier: Notifier,
    ) -> None:
        self._catalog = catalog
        self._pools = pools
        self._lifecycle = lifecycle
        self._intake = intake
        self._notifier = notifier

    async def opened(self, caller: Key, pool: Record, identifier: str) -> tuple[Record, Session]:
        """The identifier's session, made if there is none. It is used now, so its time begins again.

        :raises InvalidRequest: :raises PoolFull: :raises Forbidden: it is another key's
        """
        rules.check_identifier(identifier)
        for _ in range(3):  # it may be let go just now
            record = await self._record(caller, pool, identifier)
            try:
                session = await self._session(caller, pool, record)
            except NotFound:
                await self._forget(record)
                continue
            return await self._used(pool, record), session
        raise Conflict("identifier: it is being stopped; try again")

    async def found(self, caller: Key, pool: Record, identifier: str) -> tuple[Record, Session]:
        """The same, of one that is there. :raises NotFound: it is not"""
        rules.check_identifier(identifier)
        record = await self._named(pool, identifier)
        if record is None or record.body["session_id"] is None:
            raise NotFound(f"session {identifier} was not found")
        return record, await self._seen(caller, record)

    async def page(self, pool: Record, skip: int, limit: int) -> list[Record]:
        """Identifiers of a pool, newest first."""
        return (await self._every(pool))[skip : skip + limit]

    async def stop(self, caller: Key, pool: Record, identifier: str) -> None:
        """Let it go now, with its variables and files; what runs is ended.

        :raises NotFound: :raises Forbidden: :raises SessionBusy: it does not end
        """
        record, session = await self.found(caller, pool, identifier)
        await self._remove(record, session.id)

    async def empty(self, pool: Record) -> None:
        """Let all identifiers of a pool go that was deleted; those that work, when they have ended."""
        for record in await self._every(pool):
            await self._catalog.change(
                KIND, record.tenant, record.id, lambda now: now.body, due_at=_now()
            )
        await self.sweep()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Let identifiers go that have cooled down, for ever."""
        task_status.started()
        while True:
            await anyio.sleep(_SWEEPS_EVERY)
            try:
                await self.sweep()
            except RoostError as error:
                _log.warning(
                    "cannot let identifiers go: %s", error.message, extra={"action": "pool"}
                )

    async def sweep(self) -> None:
        """Let go of what has cooled down."""
        for record in await self._catalog.due(KIND, _now(), limit=_PAGE):
            try:
                if record.body["session_id"] is not None:
                    await self._lifecycle.remove(record.tenant, record.body["session_id"])
                await self._forget(record)
            except SessionBusy:
                await self._postpone(record, _now() + _LATER)
            except NotFound:
                await self._forget(record)

    # One identifier

    async def _record(self, caller: Key, pool: Record, identifier: str) -> Record:
        known = await self._named(pool, identifier)
        if known is not None:
            return known
        most = pool.body["max_sessions"]
        if len(await self._every(pool)) >= most:
            raise PoolFull(f"the pool has {most} sessions already", retry_after=5)
        body = {
            "name": _name(pool, identifier),
            "pool_id": pool.id,
            "identifier": identifier,
            "word": mint("word"),
            "session_id": None,
        }
        due = rules.due_at(pool.body, _now(), _now())
        with suppress(Conflict):  # another request was quicker
            return await self._catalog.add(
                KIND,
                pool.tenant,
                mint("psess"),
                body,
                unique_name=True,
                created_by=caller.principal,
                due_at=due,
            )
        found = await self._named(pool, identifier)
        if found is None:
            raise Conflict("identifier: it is being stopped; try again")
        return found

    async def _session(self, caller: Key, pool: Record, record: Record) -> Session:
        """:raises NotFound: it was deleted :raises Forbidden: it is another key's"""
        if record.body["session_id"] is not None:
            return await self._seen(caller, record)
        title = f"{pool.body['name']}: {record.body['identifier']}"[:200]
        receipt = Receipt(f"pool:{record.body['word']}", "")
        params = session_params(pool, title)
        session = await self._lifecycle.create(caller, params, (), receipt)
        await self._catalog.change(
            KIND, record.tenant, record.id, lambda now: {**now.body, "session_id": session.id}
        )
        return session

    async def _seen(self, caller: Key, record: Record) -> Session:
        """The session, if the caller may use it. :raises NotFound: it was deleted :raises Forbidden:"""
        session = await self._lifecycle.get(record.tenant, record.body["session_id"])
        try:
            await self._lifecycle.access.check(caller, session, "tell")
        except NotFound:
            raise Forbidden("this identifier is another key's") from None
        return session

    async def _used(self, pool: Record, record: Record) -> Record:
        """Begin its time again: written only now and then, as it is done for each request."""
        due, now = rules.due_at(pool.body, record.created_at, _now()), _now()
        step = pool.body["cooldown_seconds"] * 100_000
        if due - (record.due_at or 0) > step or (record.due_at or 0) < now:
            return await self._postpone(record, due)
        return record

    async def _postpone(self, record: Record, due: Micros) -> Record:
        try:
            return await self._catalog.change(
                KIND, record.tenant, record.id, lambda now: now.body, due_at=due
            )
        except NotFound:
            return record  # it was let go just now

    async def _remove(self, record: Record, session_id: str) -> None:
        deadline = anyio.current_time() + _STOPS_WITHIN
        with self._notifier.subscribe(session_id) as subscription:
            while True:
                try:
                    await self._lifecycle.remove(record.tenant, session_id)
                    break
                except NotFound:
                    break
                except SessionBusy:
                    if anyio.current_time() >= deadline:
                        raise
                    await self._intake.accept(session_id, [new_draft("user.interrupt")])
                await subscription.until_notified(1.0)
        await self._forget(record)

    async def _forget(self, record: Record) -> None:
        with suppress(NotFound):
            await self._catalog.delete(KIND, record.tenant, record.id)

    async def _named(self, pool: Record, identifier: str) -> Record | None:
        return await self._catalog.named(KIND, pool.tenant, _name(pool, identifier))

    async def _every(self, pool: Record) -> list[Record]:
        found: list[Record] = []
        after = None
        while True:
            query = RecordQuery(kind=KIND, tenant=pool.tenant, after=after, limit=_PAGE)
            page = await self._catalog.page(query)
            found += [record for record in page if record.body["pool_id"] == pool.id]
            if len(page) < _PAGE:
                return found
            after = page[-1].id


def session_params(pool: Record, title: str | None) -> dict[str, Any]:
    """What the session of an identifier is made with."""
    return {
        "agent": pool,
        "environment_id": pool.body["environment_id"],
        "harness": "code",
        "title": title,
    }


def _name(pool: Record, identifier: str) -> str:
    return f"{pool.id} {identifier}"


def _now() -> Micros:
    return time.time_ns() // 1000
