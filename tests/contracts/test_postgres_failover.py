"""A database with a standby: the primary dies, the standby is promoted, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from tests.contracts.test_postgres_faults import loaded
from tests.postgres_pair import primary_and_standby, url_of_both

from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with primary_and_standby() as both:
        yield both


async def test_what_was_acknowledged_is_on_the_standby_that_takes_over(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, standby = pair
    url = await primary.new()
    both = url_of_both(url, primary, standby)
    async with PostgresStore.open(both) as store:
        load = await loaded(store)
        async with load.running():
            await load.progress()
            primary.kill()
            await anyio.sleep(0.2)  # what it had answered before is noted now
            before = len(load.acknowledged)
            await anyio.sleep(0.5)
            assert len(load.acknowledged) == before, "acknowledged, and nobody had committed it"
            await standby.do("SELECT pg_promote()")
            await load.progress()
        await load.verify(Stage(store))
    async with PostgresStore.open(both) as store:
        await load.verify(Stage(store))
