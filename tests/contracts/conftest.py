"""What the tests of several adapters share; above all a database on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

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
