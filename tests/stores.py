"""Which database stands behind a test: a file in its data directory, or one of its own on a PostgreSQL.

Houses and servers ask for the database of their data directory, and the fixture `databases` decides what they
get. One that is opened again in the same directory finds the same database.
"""

from __future__ import annotations

import sqlite3
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from roost.stores.postgres import PostgresStore
from roost.stores.postgres.driver import worded
from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

Kind = Literal["sqlite", "postgres"]
MASTER_KEY = b64encode(
    bytes(range(32))
).decode()  # a server that shares its database must be given one

BOTH: tuple[Kind, ...] = ("sqlite", "postgres")
ROOMS: dict[str, tuple[Kind, ...]] = {
    "api": BOTH,
    "gateway": ("postgres",),
    "journeys": ("postgres",),
    "sdk": ("postgres",),
    "web": ("sqlite",),
}
"""Which stores the tests of a room run on, if `--store` does not say. CONTRIBUTING.md has the reasons."""


def kinds_of(test: pytest.Item, wanted: str | None) -> Sequence[Kind]:
    """Which stores a test runs on; none if its room is not about what databases do."""
    usual = ROOMS.get(test.path.parent.name, ())
    if not usual:
        return ()
    if wanted is None:
        return BOTH if test.get_closest_marker("both_stores") else usual
    return BOTH if wanted == "both" else (cast(Kind, wanted),)


class Databases(Protocol):
    """The databases of a test's data directories."""

    def url(self, data: Path) -> str:
        """The one of this directory."""
        ...

    def environ(self, data: Path) -> dict[str, str]:
        """What a server of this directory is told."""
        ...

    def rows(self, data: Path, question: str, *values: str) -> list[tuple[Any, ...]]:
        """What is in it: `question` is SQL that both stores understand, with `?` for the values."""
        ...

    def holds(self, data: Path, text: str) -> bool:
        """Whether it has this text anywhere, beside what is in the directory's files."""
        ...

    def drop(self, folder: Path) -> None:
        """Those of this folder's directories are not needed any more."""
        ...


class Files:
    """Each in its directory: what a server does that is told nothing."""

    def url(self, data: Path) -> str:
        return f"sqlite:///{data / 'roost.db'}"

    def environ(self, data: Path) -> dict[str, str]:
        return {}

    def rows(self, data: Path, question: str, *values: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{data / 'roost.db'}?mode=ro", uri=True)) as database:
            return database.execute(question, values).fetchall()

    def holds(self, data: Path, text: str) -> bool:
        return False

    def drop(self, folder: Path) -> None:
        pass


class Copies:
    """Each a copy of one that has its tables already: the migrations do not run every time."""

    def __init__(self, server: PostgresServer, template: str, portal: BlockingPortal) -> None:
        self._server = server
        self._template = template
        self._portal = portal
        self._urls: dict[Path, str] = {}

    def url(self, data: Path) -> str:
        if data not in self._urls:
            self._urls[data] = self._portal.call(self._server.new, self._template)
        return self._urls[data]

    def environ(self, data: Path) -> dict[str, str]:
        return {"ROOST_DATABASE_URL": self.url(data), "ROOST_MASTER_KEY": MASTER_KEY}

    def rows(self, data: Path, question: str, *values: str) -> list[tuple[Any, ...]]:
        found = self._portal.call(self._server.do, worded(question), self.url(data), *values)
        return [tuple(row) for row in found]

    def holds(self, data: Path, text: str) -> bool:
        tables = self.rows(data, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        has = "WHERE position(? IN t::text) + position(? IN t::text) > 0"
        either = text, text.encode().hex()  # bytes are shown as digits
        return any(self.rows(data, f"SELECT 1 FROM {name} t {has}", *either) for (name,) in tables)

    def drop(self, folder: Path) -> None:
        for data in [data for data in self._urls if data.is_relative_to(folder)]:
            self._portal.call(self._server.drop, self._urls.pop(data))


@contextmanager
def copying(server: PostgresServer) -> Iterator[Copies]:
    """They can be had in the middle of any test, also of one that has an event loop of its own."""

    async def prepare() -> str:
        async with PostgresStore.open(url := await server.new()):
            return url

    with start_blocking_portal() as portal:
        copies = Copies(server, portal.call(prepare), portal)
        yield copies
        copies.drop(Path("/"))


class _InUse:
    databases: Databases = Files()


def url_of(data: Path) -> str:
    """The database of a data directory, for the test that runs."""
    return _InUse.databases.url(data)


def rows_of(data: Path, question: str, *values: str) -> list[tuple[Any, ...]]:
    """What is in it."""
    return _InUse.databases.rows(data, question, *values)


def holds(data: Path, text: str) -> bool:
    """Whether it has this text anywhere, beside what is in the directory's files."""
    return _InUse.databases.holds(data, text)


@contextmanager
def used(databases: Databases) -> Iterator[None]:
    """Houses and servers get theirs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_InUse, "databases", databases)
        patch.setattr(LiveServer, "environ_of", staticmethod(databases.environ))
        yield
