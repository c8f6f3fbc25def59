"""What is SQLite's own: files, locks, schema, time, full disks, and commits in groups."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from tests.contracts.sqlite_batch import Doing, together

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Session
from roost.errors import DataDirLocked, LeaseLost, SchemaTooNew, StartupError, Unavailable
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.stores.sql import catalog
from roost.stores.sql.steps import Migration
from roost.stores.sqlite import SqliteStore, clock, migrate, transaction
from roost.stores.sqlite.transaction import SqliteTransaction, SweepSlice
from roost.testing.stage import TENANT, Stage, answer, message, numbers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "roost.db"


@pytest.fixture
async def store(path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(path) as store:
        yield store


def query(path: Path, sql: str) -> list[Any]:
    with apsw.Connection(str(path)) as db:
        return list(db.execute(sql).fetchall())


# Files


async def test_everything_is_there_after_reopening(path: Path) -> None:
    async with SqliteStore.open(path) as store:
        stage = Stage(store)
        lease = await stage.running(message("one"), message("two"))
        [first, _] = await store.log.inputs(lease.session_id)
        await store.log.append(lease, Batch(takes=[first], drafts=[answer()], turn=TurnMark.BEGIN))
        receipts = [Receipt("k", "f")]
        known = await store.log.accept(lease.session_id, [message()], receipts=receipts)
        await store.catalog.add("agent", TENANT, "agent_1", {"name": "a"}, unique_name=True)
        key = Key(
            id="key_1", tenant=TENANT, name="n", role="user", digest=b"d", hint="", created_at=0
        )
        await store.keys.add(key)
        log, inputs = await stage.all(lease.session_id), await store.log.inputs(lease.session_id)
        session = await stage.look(lease.session_id)
    async with SqliteStore.open(path) as store:
        stage = Stage(store)
        assert await stage.all(lease.session_id) == log
        assert await store.log.inputs(lease.session_id) == inputs
        again = await stage.look(lease.session_id)
        assert (again.state, again.spec) == (session.state, session.spec)
        repeated = await store.log.accept(lease.session_id, [message()], receipts=receipts)
        assert repeated.repeated
        assert repeated.entries == known.entries
        assert (await store.catalog.get("agent", TENANT, "agent_1")).body == {"name": "a"}
        assert [key.id for key in await store.keys.all()] == ["key_1"]
        assert numbers((await stage.say(lease.session_id)).entries) == [log[-1].seq + 1]


async def test_sessions_of_the_process_before_are_claimable_at_once(path: Path) -> None:
    async with SqliteStore.open(path) as store:
        old = await Stage(store).running()
    async with SqliteStore.open(path) as store:
        [new] = await Stage(store).claim("node_2")
        assert (new.session_id, new.generation) == (old.session_id, old.generation + 1)
        with pytest.raises(LeaseLost):
            await store.log.append(old, Batch(drafts=[answer()]))


async def test_a_second_server_is_kept_away_until_the_first_is_gone(path: Path) -> None:
    async with SqliteStore.open(path):
        with pytest.raises(DataDirLocked):
            async with SqliteStore.open(path):
                pass
    async with SqliteStore.open(path) as store:
        await store.ping()


async def test_a_database_of_a_newer_roost_is_left_alone(path: Path) -> None:
    async with SqliteStore.open(path):
        pass
    query(path, "INSERT INTO migrations VALUES (9999, '9999_future.sql')")
    for _ in range(2):
        with pytest.raises(SchemaTooNew):
            async with SqliteStore.open(path):
                pass


async def test_each_migration_is_applied_once_and_recorded(path: Path) -> None:
    for _ in range(2):
        async with SqliteStore.open(path):
            pass
    known = [(step.number, step.name) for step in migrate.migrations()]
    assert query(path, "SELECT number, name FROM migrations ORDER BY number") == known
    assert [number for number, _ in known] == list(range(1, len(known) + 1))


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore.open(path):
        pass
    broken = Migration(9999, "9999_broken.sql", "CREATE TABLE half (a); SELECT nonsense;")
    steps = [*migrate.migrations(), broken]
    monkeypatch.setattr(migrate, "migrations", lambda: steps)
    with pytest.raises(StartupError, match="nonsense"):
        async with SqliteStore.open(path):
            pass
    monkeypatch.undo()
    assert query(path, "SELECT name FROM sqlite_schema WHERE name = 'half'") == []
    async with SqliteStore.open(path) as store:
        await store.ping()


async def test_nobody_else_on_the_machine_may_read_the_database(
    store: SqliteStore, path: Path
) -> None:
    await store.ping()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes) == {"roost.db", "roost.db-wal", "roost.db-shm", "roost.db.lock"}
    assert set(modes.values()) == {0o600}


async def test_something_that_is_no_database_is_said_to_be_so(path: Path) -> None:
    await anyio.Path(path.parent).mkdir()
    await anyio.Path(path).write_bytes(b"certainly not a database, but long enough " * 100)
    with pytest.raises(StartupError, match=r"roost\.db"):
        async with SqliteStore.open(path):
            pass


async def test_a_closed_store_refuses(path: Path) -> None:
    async with SqliteStore.open(path) as store:
        session_id = await Stage(store).session()
    with pytest.raises(Unavailable):
        await store.log.accept(session_id, [message()])
    with pytest.raises(Unavailable):
        await store.log.read(session_id, 0, 1)


async def test_what_was_asked_before_closing_is_still_done(path: Path) -> None:
    async with SqliteStore.open(path) as store:
        session_id = await Stage(store).session(message())
        store._writer.do(Doing(lambda tx: time.sleep(0.05)))
        answers = [store._writer.do(Doing(lambda tx: tx.session(session_id).num)) for _ in range(5)]
    assert [answer.result() for answer in answers] == [1] * 5


async def test_a_half_deleted_log_is_swept_after_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices, sweep = iter(range(2)), SweepSlice.on

    def cut_off(self: SweepSlice, tx: SqliteTransaction) -> None:
        if next(slices, None) is not None:
            sweep(self, tx)

    monkeypatch.setattr(SweepSlice, "on", cut_off)
    async with SqliteStore.open(path) as store:
        stage = Stage(store)
        lease = await stage.running()
        await stage.take_all(lease)
        receipts = [Receipt("k", "f")]
        await store.log.accept(lease.session_id, [message()], receipts=receipts)
        await stage.take_all(lease)
        for _ in range(5):
            await store.log.append(lease, Batch(drafts=[answer()] * 1_000))
        assert await stage.finish(lease)
        other = await stage.idle()
        await store.sessions.delete(TENANT, lease.session_id)
    monkeypatch.undo()
    left = query(path, "SELECT count(*) FROM entries")[0][0]
    assert 1_000 < left < 5_000, "the sweep was to be cut off"
    async with SqliteStore.open(path) as store:
        for _ in range(40):
            await store.ping()
        assert await Stage(store).all(other)
    assert query(path, "SELECT count(*) FROM entries") == [(7,)]
    assert query(path, "SELECT count(*) FROM receipts") == [(0,)]
    assert query(path, "SELECT id, swept FROM graves") == [(lease.session_id, 1)]


async def test_a_sweep_that_the_disk_refuses_is_done_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore.open(path) as store:
        session_id = await Stage(store).idle()
        monkeypatch.setattr(transaction, "SLICES", ["DELETE FROM nothing WHERE num = ? LIMIT ?"])
        await store.sessions.delete(TENANT, session_id)
        for _ in range(3):
            await store.ping()
        monkeypatch.undo()
    assert query(path, "SELECT count(*) FROM entries") == [(7,)]
    async with SqliteStore.open(path) as store:
        for _ in range(3):
            await store.ping()
    assert query(path, "SELECT count(*) FROM entries") == [(0,)]


# Time


async def test_time_goes_on_from_where_it_was_when_the_clock_is_set_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore.open(path) as store:
        session_id = await Stage(store).session(message())
        now = clock.time.time_ns()
        monkeypatch.setattr(clock.time, "time_ns", lambda: now - 3_600_000_000_000)
        await Stage(store).say(session_id)
    async with SqliteStore.open(path) as store:
        await Stage(store).say(session_id)
        log = await Stage(store).all(session_id)
        moments = [entry.at for entry in log]
        assert moments == sorted(moments)
        assert moments[-1] >= moments[0] > (now - 60_000_000_000) // 1000


# Groups


async def test_what_gathers_during_a_commit_is_committed_together(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [await Stage(store).session(message()) for _ in range(50)]
    commits = 0
    commit = SqliteTransaction.commit

    def counted(tx: SqliteTransaction) -> None:
        nonlocal commits
        commits += 1
        commit(tx)

    monkeypatch.setattr(SqliteTransaction, "commit", counted)
    await together(store, *(Stage(store).say(session_id) for session_id in sessions))
    assert commits == 2, "the one that held the writer, and one for all"


async def test_a_bug_in_one_operation_fails_no_other(store: SqliteStore) -> None:
    stage = Stage(store)
    sessions = [await stage.session(message()) for _ in range(10)]

    def bug(session: Session) -> Any:
        raise ZeroDivisionError

    outcomes = await together(
        store,
        *(stage.say(session_id) for session_id in sessions),
        store.sessions.revise(TENANT, sessions[0], bug),
        *(stage.say(session_id) for session_id in sessions),
    )
    assert [type(o).__name__ for o in outcomes] == (
        ["Accepted"] * 10 + ["ZeroDivisionError"] + ["Accepted"] * 10
    )
    for session_id in sessions:
        assert numbers(await stage.all(session_id)) == [1, 2, 3, 4, 5]
        assert len(await store.log.inputs(session_id)) == 3


async def test_an_operation_that_the_database_refuses_fails_no_other(store: SqliteStore) -> None:
    stage = Stage(store)
    session_id = await stage.session(message())
    body = {"name": "a"}
    add = store.catalog.add
    outcomes = await together(
        store,
        add("agent", TENANT, "agent_1", body, unique_name=False),
        stage.say(session_id),
        add("agent", "tenant_2", "agent_1", body, unique_name=False),
        stage.say(session_id),
    )
    assert [type(o).__name__ for o in outcomes] == ["Record", "Accepted", "RoostError", "Accepted"]
    assert numbers(await stage.all(session_id)) == [1, 2, 3, 4, 5]


async def test_a_caller_that_gave_up_leaves_the_writer_unharmed(store: SqliteStore) -> None:
    stage = Stage(store)
    session_id = await stage.session(message())
    gate = threading.Event()
    store._writer.do(Doing(lambda tx: gate.wait(60)))
    with anyio.move_on_after(0.02):
        await stage.say(session_id)
    gate.set()
    accepted = await stage.say(session_id)
    assert numbers(accepted.entries) in ([4], [5])
    log = await stage.all(session_id)
    assert numbers(log) == list(range(1, len(log) + 1))


async def test_a_reader_that_gave_up_leaves_the_others_unharmed(store: SqliteStore) -> None:
    gate = threading.Event()
    with anyio.move_on_after(0.02):
        await store._readers.ask(lambda db: gate.wait(60))
    gate.set()
    assert await store.log.read("sesn_nowhere", 0, 1) == []


async def test_more_sessions_than_are_remembered_are_no_trouble(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_MOST_REMEMBERED", 3)
    stage = Stage(store)
    sessions = [await stage.session(message()) for _ in range(12)]
    for _ in range(3):
        await together(store, *(stage.say(session_id) for session_id in sessions))
    for lease in await stage.claim():
        await stage.take_all(lease)
        assert await stage.finish(lease)
    for session_id in sessions:
        assert numbers(await stage.all(session_id)) == list(range(1, 14))


async def test_what_is_not_due_is_not_looked_at(store: SqliteStore) -> None:
    for n in range(2000):
        due_at = 10**15 + n if n % 2 else None
        await store.catalog.add("task", TENANT, f"task_{n}", {}, unique_name=False, due_at=due_at)
    plan = await store._readers.ask(
        lambda db: db.execute(f"EXPLAIN QUERY PLAN {catalog.DUE}", ("task", 1, 9)).fetchall()
    )
    steps = " | ".join(step[-1] for step in plan)
    assert "INDEX records_due (kind=? AND due_at<?)" in steps
    assert "TEMP B-TREE" not in steps, "what is due is sorted by the index"
    assert await store.catalog.due("task", 10**14, limit=9) == []
