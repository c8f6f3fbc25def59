"""A SQLite database moved to PostgreSQL: all of it, cut off anywhere, and refused where it would do harm."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

from roost.errors import DataDirLocked, SchemaTooNew, StartupError
from roost.ports.catalog import RecordQuery
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.sessions import SessionQuery
from roost.ports.store import Store
from roost.stores.moving import copying, move, tables
from roost.stores.moving.target import PostgresTarget
from roost.stores.postgres import PostgresStore
from roost.stores.sqlite import SqliteStore
from roost.testing.postgres import PASSWORD, PostgresServer
from roost.testing.stage import TENANT, Stage, answer, message

SESSIONS = 7


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    file = tmp_path / "roost.db"
    async with SqliteStore.open(file) as store:
        await fill(store)
    return file


async def fill(store: Store) -> None:
    """Something in every table, of every kind that a session can be."""
    stage = Stage(store)
    resting = [await stage.idle() for _ in range(SESSIONS + 1)]
    for n, session_id in enumerate(resting[:SESSIONS]):
        once = [Receipt(f"key {n}", "same")]
        await store.log.accept(session_id, [message(f"größer {n} 🦜")], receipts=once)
        await store.workspaces.hold(session_id, f"copy_{n}", 1)
    await store.sessions.create(
        TENANT, "sesn_made", (await stage.look(resting[0])).spec, receipt=Receipt("made", "same")
    )
    await store.sessions.archive(TENANT, await stage.session())
    await store.sessions.delete(TENANT, resting.pop())
    await store.sessions.delete(TENANT, await stage.session())
    await store.catalog.add("agent", TENANT, "agent_1", {"name": "one"}, unique_name=True)
    await store.catalog.change("agent", TENANT, "agent_1", lambda record: {"name": "two"})
    await store.catalog.add("environment", TENANT, "env_1", {"name": "place"}, unique_name=True)
    await store.catalog.archive("environment", TENANT, "env_1")
    await store.catalog.add("task", TENANT, "task_1", {}, unique_name=False, due_at=2**41)
    named = {"id": "key_1", "tenant": TENANT, "name": "mine", "role": "user"}
    await store.keys.add(Key(**named, digest=b"\x00\xff", hint="rst_…", created_at=0))


async def everything(store: Store) -> list[Any]:
    """What callers can see."""
    sessions = await store.sessions.page(
        SessionQuery(tenant=TENANT, limit=100, include_archived=True)
    )
    logs = [await store.log.read(session.id, 0, 1000) for session in sessions]
    kinds = ("agent", "environment")
    listed = [
        await store.catalog.page(
            RecordQuery(kind=kind, tenant=TENANT, limit=100, include_archived=True)
        )
        for kind in kinds
    ]
    due = await store.catalog.due("task", 2**62, limit=9)
    versions = await store.catalog.versions("agent", TENANT, "agent_1", before=None, limit=9)
    spaces = [await store.workspaces.find(session.id) for session in sessions]
    states = [(s.id, s.spec, s.state, s.created_at, s.updated_at) for s in sessions]
    return [states, logs, listed, due, versions, await store.keys.all(), spaces]


async def moved(path: Path, url: str) -> list[str]:
    """What a whole move says."""
    async with aclosing(move(path, url)) as progress:
        return [one.said async for one in progress if one.said]


async def test_everything_is_there_afterwards_and_goes_on(path: Path, url: str) -> None:
    [said] = await moved(path, url)
    assert said.startswith(f"moved and checked: {SESSIONS + 2} sessions with ")
    async with SqliteStore.open(path) as old, PostgresStore.open(url) as new:
        stage = Stage(new)
        assert await everything(new) == await everything(old)
        waiting = await stage.claim()
        assert len(waiting) == SESSIONS
        assert await stage.take_all(waiting[0])
        assert await stage.finish(waiting[0], drafts=[answer()])
        again = await new.log.accept(
            waiting[1].session_id, [message()], receipts=[Receipt("key 1", "same")]
        )
        assert again.repeated
        made = await new.sessions.made(TENANT, Receipt("made", "same"))
        assert made is not None and made.id == "sesn_made"
        fresh = await stage.session()
        newest = await new.sessions.page(SessionQuery(tenant=TENANT, limit=1))
        assert [session.id for session in newest] == [fresh], "a number was given twice"


async def test_cut_off_after_any_piece_it_goes_on_and_nothing_is_there_twice(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_MOST_ROWS", 5)
    add, pieces = PostgresTarget.add, 0

    async def add_one_and_die(self: PostgresTarget, *what: Any) -> None:
        nonlocal pieces
        await add(self, *what)
        pieces += 1
        raise OSError("cut off")

    monkeypatch.setattr(PostgresTarget, "add", add_one_and_die)
    while pieces < 100:
        try:
            said = await moved(path, url)
            break
        except StartupError as cut:
            assert "again" in str(cut.hint)
            with pytest.raises(StartupError, match="not everything has been moved"):
                async with PostgresStore.open(url):
                    pass
    assert pieces > 10
    assert said[-1].startswith("moved and checked")
    async with SqliteStore.open(path) as old, PostgresStore.open(url) as new:
        assert await everything(new) == await everything(old)


async def test_it_begins_anew_if_a_server_has_worked_with_the_old_database_meanwhile(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(self: PostgresTarget) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as broken, pytest.raises(StartupError):
        broken.setattr(PostgresTarget, "finish", break_off)
        await moved(path, url)
    async with SqliteStore.open(path) as old:
        await Stage(old).say("sesn_made", "and another thing")
        before = await everything(old)
    await moved(path, url)
    async with PostgresStore.open(url) as new:
        assert await everything(new) == before


async def test_a_copy_that_is_not_the_same_is_named_and_made_again(
    path: Path, url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_on = PostgresTarget.number_on

    async def tamper(self: PostgresTarget, table: tables.Table, last: int) -> None:
        await number_on(self, table, last)
        if table.name == "entries":
            changed = "UPDATE entries SET body = body || ' ' WHERE session = 3 AND seq = 1"
            await postgres.do(changed, url)

    with monkeypatch.context() as broken:
        broken.setattr(PostgresTarget, "number_on", tamper)
        with pytest.raises(StartupError, match="the same: entries of session number 3:"):
            await moved(path, url)
    assert len(await moved(path, url)) == 1


async def test_a_second_time_it_says_that_all_is_there(path: Path, url: str) -> None:
    await moved(path, url)
    assert await moved(path, url) == ["this database was moved before, and is all there"]
    async with SqliteStore.open(path) as old:
        await Stage(old).session()
    with pytest.raises(StartupError, match="moved into the target before"):
        await moved(path, url)


async def test_a_target_with_data_or_with_servers_is_refused(path: Path, url: str) -> None:
    async with PostgresStore.open(url) as store:
        with pytest.raises(StartupError, match="a Roost server uses the target"):
            await moved(path, url)
        await Stage(store).session()
    with pytest.raises(StartupError, match="data of its own, in: sessions, specs"):
        await moved(path, url)


async def test_two_moves_at_once_are_refused(
    path: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.stores.moving.target._PATIENCE", 0.3)
    other = tmp_path / "other.db"
    async with SqliteStore.open(other):
        pass
    async with aclosing(move(path, url)) as first:
        await anext(first)
        with pytest.raises(StartupError, match="another move"):
            await moved(other, url)
        with pytest.raises(DataDirLocked):
            await moved(path, url)


async def test_a_source_that_is_in_use_or_not_of_this_version_is_refused(
    path: Path, url: str, tmp_path: Path
) -> None:
    async with SqliteStore.open(path):
        with pytest.raises(DataDirLocked) as locked:
            await moved(path, url)
        assert locked.value.hint == "Stop the server, then move."
    with pytest.raises(StartupError, match="there is no database"):
        await moved(tmp_path / "nothing.db", url)
    (tmp_path / "text.db").write_text("no database at all, but a rather long text " * 30)
    with pytest.raises(StartupError, match="cannot read"):
        await moved(tmp_path / "text.db", url)
    await anyio.to_thread.run_sync(set_schema, path, "DELETE FROM migrations WHERE number > 1")
    with pytest.raises(StartupError, match="only schema") as older:
        await moved(path, url)
    assert "brings it up to date" in str(older.value.hint)
    await anyio.to_thread.run_sync(set_schema, path, "INSERT INTO migrations VALUES (999, 'x')")
    with pytest.raises(SchemaTooNew):
        await moved(path, url)


def set_schema(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


async def test_a_password_is_never_told(path: Path, postgres: PostgresServer) -> None:
    with pytest.raises(StartupError) as refused:
        await moved(path, postgres.url("nowhere"))
    assert PASSWORD not in str(refused.value)
