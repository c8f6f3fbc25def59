"""What the tests of several adapters share; above all a database on PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from tests.postgres_proxy import Proxy

from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    """Of an empty database on PostgreSQL."""
    return await postgres.new()


@pytest.fixture
async def store(url: str) -> AsyncGenerator[PostgresStore]:
    """On that, where a file has no other."""
    async with PostgresStore.open(url) as store:
        yield store


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the proxy has its socket."""
    folder = Path(tempfile.mkdtemp(prefix="roost-proxy-", dir="/tmp"))  # a socket's path is short
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def proxy(postgres: PostgresServer, place: Path) -> AsyncGenerator[Proxy]:
    """Before the database, to cut what goes through it."""
    async with Proxy.before(postgres, place) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(postgres: PostgresServer, place: Path, proxy: Proxy, url: str) -> str:
    """Of the same database, by way of the proxy."""
    return url.replace(str(postgres.folder), str(place))
