"""Processes that die between two writes, and what is tidied up after them some hours later."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.api_server import ApiServer

from roost.core.files.janitor import FileJanitor
from roost.core.files.store import FileStore
from roost.core.records.skills import Skills
from roost.ports.catalog import SYSTEM_TENANT, RecordQuery

HOUR = 3600 * 1_000_000


class Killed(BaseException):
    """The process dies here."""


class Writes:
    """Counts calls; the process dies instead of the one with this number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self._monkeypatch = monkeypatch
        self.left = last

    def count(self, owner: Any, *names: str) -> None:
        for name in names:
            self._monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        async def write(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return await real(*args, **more)

        return write


class Later:
    """A server's files, so many microseconds later."""

    def __init__(self, roost: ApiServer, later: int) -> None:
        inner = roost.deps.services[FileStore]
        clock = lambda: inner._clock() + later  # noqa: E731
        self.store = FileStore(roost.store.catalog, inner._blobs, inner._access, clock=clock)
        own = roost.store.catalog, roost.store.sessions, roost.deps.services[Skills].heed
        self.janitor = FileJanitor(self.store, *own, clock=clock)


async def notes(roost: ApiServer) -> int:
    """How many are on the shelf."""
    return len(await roost.store.catalog.page(RecordQuery(kind="file_note", tenant=SYSTEM_TENANT)))
