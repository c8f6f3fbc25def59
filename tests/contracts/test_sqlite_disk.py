"""Trouble with the disk, and how SQLite is asked to use it."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from tests.contracts.sqlite_batch import Doing, together

from roost.domain.ledger import Batch
from roost.errors import Unavailable
from roost.stores.sqlite import SqliteStore, checkpoint
from roost.stores.sqlite.transaction import SqliteTransaction
from roost.testing.stage import Stage, answer, message, numbers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "roost.db"


@pytest.fixture
async def store(path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(path) as store:
        yield store


async def limit_pages(store: SqliteStore, pages: int) -> None:
    await store._writer.do(Doing(lambda tx: tx.query(f"PRAGMA max_page_count = {pages}")))


async def test_a_full_disk_is_said_and_nothing_is_half_done(store: SqliteStore) -> None:
    stage = Stage(store)
    sessions = [await stage.session(message()) for _ in range(5)]
    await limit_pages(store, 1)  # no smaller than the file is: it cannot grow any more
    large = "x" * 200_000
    outcomes = await together(
        store,
        stage.say(sessions[0], large),
        stage.say(sessions[1], "small"),
        stage.say(sessions[2], large),
        store.log.read(sessions[3], 0, 10),
    )
    assert [type(o).__name__ for o in outcomes] == [
        "Unavailable",
        "Accepted",
        "Unavailable",
        "list",
    ]
    assert [len(await stage.all(session_id)) for session_id in sessions] == [3, 4, 3, 3, 3]
    assert [len(await store.log.inputs(session_id)) for session_id in sessions] == [1, 2, 1, 1, 1]
    await limit_pages(store, 1_000_000)
    for session_id in sessions:
        assert (await stage.say(session_id, large)).entries
    assert numbers(await stage.all(sessions[0])) == [1, 2, 3, 4]
    await store.ping()


class FailingDisk(apsw.VFS):
    """The usual disk, except that it can be told to fail whatever must be durable."""

    def __init__(self) -> None:
        self.broken = False
        self.syncs = 0
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: Any) -> None:
        self.disk = disk
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        self.disk.syncs += 1
        if self.disk.broken:
            raise apsw.IOError("the disk is on fire")
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    yield disk
    disk.unregister()


async def test_a_failing_disk_is_said_and_the_store_works_when_it_recovers(
    disk: FailingDisk, path: Path
) -> None:
    async with SqliteStore.open(path) as store:
        stage = Stage(store)
        lease = await stage.running()
        await stage.take_all(lease)
        before = await stage.all(lease.session_id)
        disk.broken = True
        calls = [
            stage.say(lease.session_id),
            store.log.append(lease, Batch(drafts=[answer()])),
            store.ping(),
        ]
        outcomes = await together(store, *calls)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
        assert await stage.all(lease.session_id) == before
        disk.broken = False
        assert numbers((await stage.say(lease.session_id)).entries) == [before[-1].seq + 1]
        await store.ping()
        assert len(await store.log.inputs(lease.session_id)) == 1


async def test_a_disk_that_refuses_even_to_roll_back_does_so_before_the_next_batch(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store)
    session_id = await stage.session(message())

    def refuse(tx: SqliteTransaction) -> None:
        raise apsw.IOError("not now")

    def fail(tx: SqliteTransaction) -> None:
        tx.query("DELETE FROM entries")
        monkeypatch.setattr(SqliteTransaction, "_roll_back", refuse)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store._writer.do(Doing(fail))
    with pytest.raises(Unavailable):
        await stage.say(session_id)
    monkeypatch.undo()
    assert numbers((await stage.say(session_id)).entries) == [4]
    assert numbers(await stage.all(session_id)) == [1, 2, 3, 4]


async def test_every_acknowledgement_was_preceded_by_a_sync(disk: FailingDisk, path: Path) -> None:
    async with SqliteStore.open(path) as store:
        session_id = await Stage(store).session(message())
        for _ in range(10):
            before = disk.syncs
            await Stage(store).say(session_id)
            assert disk.syncs > before
        before = disk.syncs
        await store.log.renew("node_1", 10)
        assert disk.syncs == before, "an idle server writes nothing"


async def test_the_log_beside_the_database_does_not_grow_without_end(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_AT_LAST", 2_000)
    stage = Stage(store)
    lease = await stage.running()
    done = anyio.Event()
    largest = 0

    async def follow() -> None:
        while not done.is_set():
            await store.log.read(lease.session_id, 0, 500)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(follow)
        for _ in range(200):
            await store.log.append(lease, Batch(drafts=[answer("x" * 1_000)] * 100))
            largest = max(largest, (await anyio.Path(f"{path}-wal").stat()).st_size)
        done.set()
    assert largest < 4_096 * 2_000 * 1.5


async def test_a_log_that_cannot_be_shortened_now_stops_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_OFTEN", 1)
    monkeypatch.setattr(checkpoint, "_AT_LAST", 1)
    await store._writer.do(Doing(lambda tx: tx._db.set_busy_timeout(0)))
    stage = Stage(store)
    session_id = await stage.session(message())
    gate = threading.Event()

    def linger(db: apsw.Connection) -> None:
        rows = db.execute("SELECT seq FROM entries")
        next(rows)
        gate.wait(60)

    reading = store._readers.ask(linger)
    for _ in range(5):
        await stage.say(session_id)
    gate.set()
    await reading
    assert len(await stage.all(session_id)) == 8


async def test_a_reader_does_not_wait_for_the_writer(store: SqliteStore) -> None:
    session_id = await Stage(store).session(message())
    gate = threading.Event()
    held = store._writer.do(Doing(lambda tx: gate.wait(120)))
    with anyio.fail_after(60):
        assert len(await Stage(store).all(session_id)) == 3
    assert not held.done()
    gate.set()
    await held
