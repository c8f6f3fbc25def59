"""Sessions prefer the node that has their files, and never depend on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from roost.ports.nodes import About
from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage

# As if they had become work in an hour: so a head start does not pass while a test looks.
JUST_NOW = "UPDATE sessions SET active_since = active_since + 3600000000 WHERE active_since > 0"
A_WHILE_AGO = "UPDATE sessions SET active_since = active_since - 7200000000 WHERE active_since > 0"


class Homes:
    """Two nodes with a place each, and a session whose files the first one has."""

    def __init__(self, server: PostgresServer, url: str, store: PostgresStore) -> None:
        self.store = store
        self._server = server
        self._url = url

    async def begin(self) -> str:
        for node in ("red", "blue"):
            await self.store.log.renew(node, 60)
            await self.store.nodes.tell(node, About(name=node, home=f"home_{node}"))
        stage = Stage(self.store)
        lease = await stage.running(node="red")
        await stage.take_all(lease)
        await stage.finish(lease)
        await stage.say(lease.session_id)
        await self.do(JUST_NOW)
        return lease.session_id

    async def do(self, statement: str) -> None:
        await self._server.do(statement, self._url)

    async def claimed(self, node: str) -> list[str]:
        return [lease.session_id for lease in await self.store.log.claim(node, 9)]


@pytest.fixture
async def homes(postgres: PostgresServer) -> AsyncGenerator[Homes]:
    url = await postgres.new()
    async with PostgresStore.open(url) as store:
        yield Homes(postgres, url, store)


async def test_a_session_that_wakes_is_left_to_the_node_that_has_its_files(homes: Homes) -> None:
    session_id = await homes.begin()
    fresh = await Stage(homes.store).session()
    await Stage(homes.store).say(fresh)
    assert await homes.claimed("blue") == [fresh], "what has no files anywhere is anybody's"
    assert await homes.claimed("red") == [session_id]


async def test_a_head_start_passes(homes: Homes) -> None:
    session_id = await homes.begin()
    assert await homes.claimed("blue") == []
    await homes.do(A_WHILE_AGO)
    assert await homes.claimed("blue") == [session_id]
    await homes.store.log.renew("blue", 0)
    await homes.store.log.renew("green", 60)
    await homes.do(JUST_NOW)
    assert await homes.claimed("green") == [session_id], "nobody lives where its files are now"


async def test_nobody_waits_for_a_node_that_drains_or_is_gone(homes: Homes) -> None:
    session_id = await homes.begin()
    await homes.store.nodes.mark("red", draining=True)
    assert await homes.claimed("blue") == [session_id]
    again = await homes.begin()
    await homes.store.log.renew("red", 0)
    assert await homes.claimed("blue") == [again]


async def test_a_server_that_was_started_again_still_has_its_files(homes: Homes) -> None:
    session_id = await homes.begin()
    await homes.store.log.renew("red", 0)
    await homes.store.log.renew("red_again", 60)
    await homes.store.nodes.tell("red_again", About(home="home_red"))
    assert await homes.claimed("blue") == []
    assert await homes.claimed("red_again") == [session_id]


async def test_files_are_elsewhere_while_a_node_lives_where_they_were_last(homes: Homes) -> None:
    session_id, elsewhere = await homes.begin(), homes.store.workspaces.elsewhere
    assert [await elsewhere(session_id, node) for node in ("red", "blue")] == [False, True]
    assert not await elsewhere("sesn_nobodys", "blue")
    await homes.store.log.renew("red", 0)
    assert not await elsewhere(session_id, "blue")
    await homes.store.log.renew("red_again", 60)
    await homes.store.nodes.tell("red_again", About(home="home_red"))
    assert [await elsewhere(session_id, node) for node in ("red_again", "blue")] == [False, True]
    assert await homes.claimed("red_again") == [session_id]
    assert await elsewhere(session_id, "blue")
