"""A connection that is kept and used again: whatever befell its last user, the next one gets its own rows.

Every piece of work is done again and again, and each time it is struck one wait later: cancelled, its
connection cut on either side, or its statement ended by the database. Then others use the same connection.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import anyio
import asyncpg
import pytest
from tests.postgres_proxy import Proxy
from tests.striking import WAYS, End, Way, cancelled, struck

from roost.errors import NotFound, RoostError, Unavailable
from roost.ports.log import Accepted
from roost.ports.sessions import SessionQuery
from roost.stores.postgres import PostgresStore, database
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import Connection
from roost.testing.stage import Stage

_CANCEL: Final = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
"""
_OPEN: Final = """
SELECT state, query FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""
_ALL: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_OF_ITS_OWN: Final = 5  # the writer's, the notifier's and the like
_MOST_WAITS: Final = 200
Strike = Callable[[], object]


class Mistake(Exception):
    """Of the caller's own, in the middle of its work."""


@dataclass
class Line:
    """A database over one connection, and a model of what is in it: which numbers, twice each."""

    database: Database
    look: asyncpg.Connection
    kept: set[int] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    histories: int = 0

    def lose(self) -> None:
        """It has to connect again first."""
        (line,) = self.database._shared._idle
        if line._connection is not None:
            line._connection.terminate()

    async def read(self, number: int) -> list[int]:
        """Many rows that are all this reader's own."""

        async def ask(connection: Connection) -> list[int]:
            rows = await connection.fetch(
                "SELECT $1::int AS n FROM generate_series(1, 3000)", number
            )
            again = await connection.fetchval("SELECT $1::int", number)
            return [row["n"] for row in rows] + [again]

        return await self.database.ask(ask)

    async def write(self, number: int) -> int:
        async def change(connection: Connection) -> int:
            await connection.execute("INSERT INTO kept VALUES ($1)", number)
            found = await connection.fetchval("SELECT count(*) FROM kept WHERE n = $1", number)
            await connection.execute("INSERT INTO kept VALUES ($1)", number)
            return int(found) + number

        return await self.database.write(change)

    async def fail(self, number: int) -> None:
        """The caller's own mistake, with a transaction open."""

        async def change(connection: Connection) -> None:
            await connection.execute("INSERT INTO kept VALUES ($1)", number)
            raise Mistake

        await self.database.write(change)

    async def refused(self, number: int) -> None:
        """A statement that the database refuses: the transaction is open, and lost."""

        async def change(connection: Connection) -> None:
            await connection.execute("INSERT INTO kept VALUES ($1)", number)
            await connection.execute("SELECT 1 / 0")

        await self.database.write(change)

    async def check(self, number: int, end: End, work: str) -> None:
        """The next users get their own, no transaction is open, and what is kept is what was said."""
        found = await self.look.fetchval("SELECT count(*) FROM kept WHERE n = $1", number)
        if end.value is not None and work == "write":
            assert (end.value, found) == (number + 1, 2)
        elif work == "write":
            assert found in (0, 2), "half of a transaction"
        else:
            assert found == 0, "what was to be rolled back was kept"
        if end.value is not None and work == "read":
            assert end.value == [number] * 3001, "somebody else's rows"
        for work_ in (self.read, self.write, self.read):
            own = next(self.numbers)
            with anyio.fail_after(60):
                said = await work_(own)
            assert said == ([own] * 3001 if work_ == self.read else own + 1)
        assert await self.look.fetch(_OPEN) == []
        self.histories += 1


WORKS: Final = ("read", "write", "fail", "refused")


@pytest.fixture
async def line(proxied_url: str, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Line]:
    monkeypatch.setattr(database, "_CONNECTIONS", 1)
    async with PostgresStore.open(url):
        pass  # it has its tables
    look = await asyncpg.connect(url)
    await look.execute("CREATE TABLE kept (n int)")
    try:
        async with Database.open(proxied_url) as opened:
            yield Line(opened, look)
    finally:
        await look.close()


async def at_every_wait(
    line: Line, work: str, run: Callable[[Coroutine[Any, Any, Any], int], Awaitable[End]]
) -> None:
    """Strike at the first wait, at the one after it, and so on until it is done before it is struck."""
    for at in range(1, _MOST_WAITS):
        number = next(line.numbers)
        end = await run(getattr(line, work)(number), at)
        await line.check(number, end, work)
        if not end.struck:
            return
    raise AssertionError(f"{work} waits more than {_MOST_WAITS} times")


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["connected", "connecting"])
async def test_after_a_user_was_cancelled_at_any_wait_the_next_gets_its_own_rows(
    line: Line, work: str, way: Way, first: str
) -> None:
    async def run(coro: Coroutine[Any, Any, Any], at: int) -> End:
        if first == "connecting":
            line.lose()
        return await cancelled(coro, at, way)

    await at_every_wait(line, work, run)
    print(f"{line.histories} histories")
    assert line.histories > 3


class Blows:
    """Ways to strike from outside; each takes effect while the work goes on."""

    def __init__(self, proxy: Proxy, look: asyncpg.Connection, tasks: Any) -> None:
        self._proxy = proxy
        self._look = look
        self._tasks = tasks

    def cut(self) -> None:
        """The connection breaks."""
        self._proxy.cut_all()

    def end(self) -> None:
        """The database ends the statement, as it does when a statement takes too long."""
        self._tasks.start_soon(self._look.fetch, _CANCEL)


@asynccontextmanager
async def blows(url: str, proxy: Proxy) -> AsyncGenerator[Blows]:
    connection = await asyncpg.connect(url)
    try:
        async with anyio.create_task_group() as tasks:
            yield Blows(proxy, connection, tasks)
    finally:
        await connection.close()


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("blow", ["cut", "end"])
async def test_after_a_connection_or_a_statement_was_cut_at_any_wait_the_next_gets_its_own_rows(
    line: Line, proxy: Proxy, url: str, work: str, blow: str
) -> None:
    async def run(coro: Coroutine[Any, Any, Any], at: int) -> End:
        async with blows(url, proxy) as ways:
            return await struck(coro, at, getattr(ways, blow))

    await at_every_wait(line, work, run)
    print(f"{line.histories} histories")


async def test_a_rollback_that_is_given_up_half_way_ends_the_connection(
    line: Line, proxy: Proxy
) -> None:
    kept = line.database.own_connection()
    with anyio.move_on_after(5) as patience:
        with pytest.raises(Mistake):
            async with kept.connected() as connection:
                await connection.execute("BEGIN")
                proxy.passing.clear()
                patience.deadline = anyio.current_time() + 0.05
                raise Mistake
    assert patience.cancelled_caught
    assert connection.is_closed(), "it was in the middle of a rollback, and is used again"
    proxy.passing.set()
    async with kept.connected() as connection:
        assert await connection.fetchval("SELECT 7") == 7
        assert not connection.is_in_transaction()


async def test_a_statement_that_the_database_ended_is_no_mistake_in_it(line: Line) -> None:
    async def ended(connection: Connection) -> None:
        await connection.execute("SET LOCAL statement_timeout = '20ms'")
        await connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(Unavailable, match="statement timeout"):
        await line.database.write(ended)
    await line.check(0, End(struck=True), "fail")


@pytest.mark.parametrize("way", WAYS)
async def test_who_gives_up_waiting_for_a_commit_takes_nothing_from_those_beside_it(
    store: PostgresStore, way: Way
) -> None:
    stage, histories = Stage(store), 0
    mine, beside = await stage.session(), await stage.session()
    given_up: list[str] = []
    for at in range(1, _MOST_WAITS):
        heard: list[Any] = []

        async def say(text: str, heard: list[Any] = heard) -> None:
            heard.append(await stage.say(beside, text))

        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(say, f"beside {at}.{n}")
            end = await cancelled(stage.say(mine, f"mine {at}"), at, way)
        given_up += [] if end.value else [f"mine {at}"]
        assert sorted(map(said, heard)) == [f"beside {at}.{n}" for n in range(3)]
        assert end.value is None or said(end.value) == f"mine {at}"
        assert said(await stage.say(mine, f"next {at}")) == f"next {at}"
        histories += 1
        if not end.struck:
            break
    told = [entry.fields["content"][0]["text"] for entry in await stage.all(mine) if entry.queued]
    assert len(set(told)) == len(told)
    assert set(told) - set(given_up) >= {f"next {n}" for n in range(1, histories + 1)}
    print(f"{histories} histories")


def said(accepted: Accepted) -> str:
    (entry,) = [entry for entry in accepted.entries if entry.type == "user.message"]
    return str(entry.fields["content"][0]["text"])


async def test_a_statement_that_takes_too_long_leaves_nothing_to_the_next_user(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(connection: Connection) -> None:
        await connection.execute("INSERT INTO kept VALUES (0)")
        await connection.execute("SELECT pg_sleep(60)", timeout=0.05)

    monkeypatch.setattr(Database, "_is_enough", lambda self, since: True)
    with pytest.raises(RoostError):
        await line.database.write(slow)
    await line.check(0, End(struck=True), "fail")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_many_users_struck_at_random_never_see_each_others_rows(
    line: Line, proxy: Proxy, url: str
) -> None:
    rng = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}")
    for _ in range(2000):
        work, number = rng.choice(WORKS), next(line.numbers)
        coro, at = getattr(line, work)(number), rng.randrange(1, 12)
        async with blows(url, proxy) as ways:
            kinds: Sequence[Any] = [
                lambda coro=coro, at=at: cancelled(coro, at, "scope"),
                lambda coro=coro, at=at: cancelled(coro, at, "task"),
                lambda coro=coro, at=at, ways=ways: struck(coro, at, ways.cut),
                lambda coro=coro, at=at, ways=ways: struck(coro, at, ways.end),
            ]
            end = await rng.choice(kinds)()
        await line.check(number, end, work)
    print(f"{line.histories} histories")


async def test_however_many_ask_at_once_a_server_has_so_many_connections(url: str) -> None:
    most = 0
    look = await asyncpg.connect(url)
    try:
        async with PostgresStore.open(url) as store, anyio.create_task_group() as tasks:

            async def ask() -> None:
                await store.sessions.page(SessionQuery(tenant="t"))
                with suppress(NotFound):
                    await store.sessions.archive("t", "sesn_1")

            for _ in range(100):
                tasks.start_soon(ask)
            for _ in range(20):
                most = max(most, await look.fetchval(_ALL))
                await anyio.sleep(0.01)
    finally:
        await look.close()
    assert most > 1
    assert most <= database._CONNECTIONS + _OF_ITS_OWN
