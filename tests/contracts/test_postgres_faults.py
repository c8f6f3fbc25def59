"""The database goes away in every way there is: nothing acknowledged is lost, and nothing is doubled."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.postgres_proxy import Cut, Proxy

from roost.domain.events import Draft
from roost.domain.session import Lease
from roost.errors import Unavailable
from roost.ports.log import Receipt
from roost.stores.postgres import PostgresStore, driver
from roost.stores.postgres.sweep import Sweeper
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage, message, numbers


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PATIENCE", 0.3)


@pytest.fixture
async def proxied(
    proxied_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[PostgresStore]:
    monkeypatch.setattr(
        Sweeper, "run", lambda self: anyio.lowlevel.checkpoint()
    )  # its commits are not to be cut
    async with PostgresStore.open(proxied_url) as store:
        yield store


# A commit whose outcome is not known


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_cut_while_it_commits_loses_and_doubles_nothing(
    proxy: Proxy, proxied: PostgresStore, cut: Cut
) -> None:
    stage = Stage(proxied)
    session_id = await stage.session(message())
    for n in range(3):
        proxy.cut = [cut]
        accepted = await stage.say(session_id, f"again {n}")
        assert numbers(accepted.entries) == [4 + n]
    assert proxy.cuts == 3
    assert numbers(await stage.all(session_id)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_what_is_not_grouped_is_done_once_too(
    proxy: Proxy, proxied: PostgresStore, cut: Cut
) -> None:
    stage = Stage(proxied)
    proxy.cut = [cut]
    record = await proxied.catalog.add("agent", "t", "agent_1", {"name": "a"}, unique_name=True)
    assert record.version == 1
    session_id = await stage.session(message())
    await proxied.log.renew("node_1", 60)
    proxy.cut = [cut]
    assert await proxied.log.claim("node_1", 5) == [Lease(session_id, "node_1", 1)]
    assert proxy.cuts == 2


async def test_an_outcome_that_stays_unknown_is_said_to_be(
    proxy: Proxy, proxied: PostgresStore, impatient: None
) -> None:
    stage = Stage(proxied)
    session_id = await stage.session(message())
    draft, receipts = message(), [Receipt("k", "f")]
    proxy.cut = ["for good"]
    with pytest.raises(Unavailable) as unknown:
        await proxied.log.accept(session_id, [draft], receipts=receipts)
    assert "not known" in str(unknown.value.hint)
    proxy.shut = False
    again = await proxied.log.accept(session_id, [message()], receipts=receipts)
    assert again.repeated
    assert [entry.id for entry in again.entries] == [draft.id]


async def test_a_session_claimed_by_a_commit_of_unknown_outcome_is_given_at_the_next_claim(
    proxy: Proxy, proxied: PostgresStore, impatient: None
) -> None:
    stage = Stage(proxied)
    session_id = await stage.session(message())
    await proxied.log.renew("node_1", 60)
    proxy.cut = ["for good"]
    with pytest.raises(Unavailable):
        await proxied.log.claim("node_1", 5)
    proxy.shut = False
    assert await proxied.log.claim("node_1", 5) == [Lease(session_id, "node_1", 1)]
    assert await proxied.log.claim("node_1", 5) == []


async def test_a_claim_of_unknown_outcome_that_another_node_took_over_is_not_given(
    proxy: Proxy, proxied: PostgresStore, impatient: None
) -> None:
    stage = Stage(proxied)
    session_id = await stage.session(message())
    await proxied.log.renew("node_1", 60)
    await proxied.log.renew("node_2", 60)
    proxy.cut = ["for good"]
    with pytest.raises(Unavailable):
        await proxied.log.claim("node_1", 5)
    proxy.shut = False
    await proxied.log.renew("node_1", 0)
    assert await proxied.log.claim("node_2", 5) == [Lease(session_id, "node_2", 2)]
    await proxied.log.renew("node_1", 60)
    assert await proxied.log.claim("node_1", 5) == []


# Under load


class Load:
    """Clients that send, one after the other, and a note of everything that was acknowledged."""

    def __init__(self, store: PostgresStore, sessions: list[str]) -> None:
        self.store = store
        self.sessions = sessions
        self.sent: dict[str, str] = {}
        self.acknowledged: dict[str, tuple[str, int]] = {}
        self.refused = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            for session_id in self.sessions:
                tasks.start_soon(self._client, session_id)
            yield
            tasks.cancel_scope.cancel()

    async def _client(self, session_id: str) -> None:
        while True:
            draft = message()
            self.sent[draft.id] = session_id
            await self._send(session_id, draft)

    async def _send(self, session_id: str, draft: Draft) -> None:
        try:
            accepted = await self.store.log.accept(session_id, [draft], max_queued=10**6)
        except Unavailable:
            self.refused += 1
            return
        self.acknowledged[draft.id] = session_id, accepted.entries[0].seq

    async def progress(self, more: int = 50) -> None:
        goal = len(self.acknowledged) + more
        with anyio.fail_after(60):
            while len(self.acknowledged) < goal:  # noqa: ASYNC110 - many tasks add to it
                await anyio.sleep(0.01)

    async def verify(self, stage: Stage) -> None:
        for session_id in self.sessions:
            log = await stage.all(session_id)
            assert numbers(log) == list(range(1, len(log) + 1))
            ids = [entry.id for entry in log]
            assert len(set(ids)) == len(ids), "doubled"
            stored = {entry.id: entry.seq for entry in log}
            for id, (where, seq) in self.acknowledged.items():
                assert where != session_id or stored.get(id) == seq, "lost"


async def loaded(store: PostgresStore, sessions: int = 20) -> Load:
    stage = Stage(store)
    return Load(store, [await stage.session(message()) for _ in range(sessions)])


async def test_connections_ended_under_load_lose_and_double_nothing(
    postgres: PostgresServer, store: PostgresStore, url: str
) -> None:
    load = await loaded(store)
    async with load.running():
        for _ in range(4):
            await load.progress()
            await postgres.cut(url)
        await load.progress()
    await load.verify(Stage(store))
    assert not load.refused


async def test_cuts_at_any_byte_under_load_lose_and_double_nothing(
    proxy: Proxy, proxied: PostgresStore
) -> None:
    load = await loaded(proxied)
    chance = random.Random(7)
    async with load.running():
        for _ in range(8):
            await load.progress(chance.randrange(5, 60))
            proxy.cut_all()
            proxy.cut = [chance.choice(["before", "after"]) for _ in range(3)]
        await load.progress()
    proxy.cut = []
    await load.verify(Stage(proxied))


async def test_a_killed_postmaster_loses_and_doubles_nothing_and_ends_no_lease(
    postgres: PostgresServer, store: PostgresStore, url: str
) -> None:
    load = await loaded(store)
    await store.log.renew("node_1", 60)
    mine = await store.log.claim("node_1", 5)
    async with load.running():
        await load.progress()
        postgres.kill()
        await anyio.sleep(0.2)
        postgres.start()
        await load.progress()
    await load.verify(Stage(store))
    await postgres.do("UPDATE nodes SET expires = 1", url)
    others = await Stage(store).claim("node_2")
    assert others
    assert not {lease.session_id for lease in others} & {lease.session_id for lease in mine}


async def test_a_way_that_is_blocked_for_a_while_is_waited_for(
    proxy: Proxy, proxied: PostgresStore
) -> None:
    load = await loaded(proxied)
    async with load.running():
        await load.progress()
        proxy.passing.clear()
        await anyio.sleep(0.5)
        proxy.passing.set()
        await load.progress()
    await load.verify(Stage(proxied))


async def test_a_database_that_stays_away_is_said_to_be_and_is_found_again(
    proxy: Proxy, proxied: PostgresStore, place: Path, impatient: None
) -> None:
    stage = Stage(proxied)
    session_id = await stage.session()
    socket = place / ".s.PGSQL.5432"
    await anyio.Path(socket).rename(place / "away")
    proxy.cut_all()
    with pytest.raises(Unavailable):
        await stage.say(session_id)
    with pytest.raises(Unavailable):
        await stage.all(session_id)
    with pytest.raises(Unavailable):
        await proxied.ping()
    await anyio.Path(place / "away").rename(socket)
    assert numbers((await stage.say(session_id)).entries) == [1]


async def test_a_database_that_does_not_write_refuses_until_it_does(
    postgres: PostgresServer, store: PostgresStore, url: str, impatient: None
) -> None:
    stage = Stage(store)
    session_id = await stage.session()
    name = url.partition("@/")[2].partition("?")[0]
    await postgres.do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await postgres.cut(url)
    with pytest.raises(Unavailable):
        await stage.say(session_id)
    await postgres.do(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert numbers((await stage.say(session_id)).entries) == [1]
