"""Interpreters that are kept ready: pools say how many, and each node keeps so many of its own.

What is kept is an agent that was started ahead (`core/work/prestart.py`): it has the id, the sandbox and the files of
one session that is not yet made. An identifier's session gets that id, and nobody else does.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import anyio
from anyio.abc import TaskStatus

from roost.core.pools.identifiers import session_params
from roost.core.pools.pools import CHANGED, KIND
from roost.core.sessions.specs import SessionSpecs
from roost.core.work.prestart import Prestart
from roost.domain.session import Session, State
from roost.errors import RoostError
from roost.ports.catalog import Catalog, Record
from roost.ports.keys import Key
from roost.ports.notifier import Notifier

_LOOK_AGAIN: Final = 5.0  # seconds; what is changed at another node is seen this late
_MOST_POOLS: Final = 100
_log = logging.getLogger(__name__)


class ReadyInterpreters:
    """Says which agents are to be started ahead for pools."""

    def __init__(
        self, catalog: Catalog, specs: SessionSpecs, prestart: Prestart, notifier: Notifier
    ) -> None:
        self._catalog = catalog
        self._specs = specs
        self._prestart = prestart
        self._notifier = notifier
        self._told: set[str] = set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look again and again what pools ask for, for ever."""
        with self._notifier.subscribe(CHANGED) as subscription:
            task_status.started()
            while True:
                try:
                    await self._look()
                except RoostError as error:
                    _log.warning("cannot look for pools: %s", error, extra={"action": "pool"})
                    await anyio.sleep(_LOOK_AGAIN)
                await subscription.until_notified(_LOOK_AGAIN)

    async def _look(self) -> None:
        wanted: list[Session] = []
        for pool in await self._catalog.due(KIND, _now(), limit=_MOST_POOLS):
            try:
                wanted += [await self._like(pool)] * pool.body["ready_sessions"]
                self._told.discard(pool.id)
            except (
                RoostError
            ) as error:  # such as an environment that is gone: an identifier is told
                if pool.id not in self._told:
                    self._told.add(pool.id)
                    about = {"action": "pool", "pool": pool.id}
                    _log.warning("nothing is kept ready: %s", error.message, extra=about)
        self._prestart.keep(wanted)

    async def _like(self, pool: Record) -> Session:
        """A session such as an identifier of the pool gets. :raises RoostError: it would get none"""
        spec = await self._specs.of(_nobody(pool.tenant), session_params(pool, None))
        state = State(thread_id="", agent_name=spec.agent["name"])
        return Session(
            id="", tenant=pool.tenant, spec=spec, state=state, created_at=0, updated_at=0
        )


def _nobody(tenant: str) -> Key:
    """A caller who is trusted no further than anybody: which of the tenant's keys comes is not known yet."""
    return Key(id="", tenant=tenant, name="", role="user", digest=b"", hint="", created_at=0)


def _now() -> int:
    return time.time_ns() // 1000
