"""From one version to the next while servers work: what a step of the schema may do, and what old code does."""

from __future__ import annotations

import re

import anyio
import asyncpg
import pytest

from roost.errors import SchemaTooNew, StartupError
from roost.ports.nodes import About
from roost.stores.postgres import PostgresStore, migrate, opening
from roost.stores.sql.steps import Migration
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage, message

KNOWN = migrate.migrations()
NEWEST = KNOWN[-1].number

# What code of the version before does not notice.
ADDS = re.compile(
    r"CREATE (UNLOGGED )?TABLE \w+ .*"
    r"|CREATE INDEX \w+ ON \w+ .*"
    r"|ALTER TABLE \w+ ADD COLUMN \w+ \w+( PRECISION)?( NOT NULL DEFAULT .*)?",
    re.DOTALL,
)


def step(name: str, script: str) -> Migration:
    number = NEWEST + int(name[0])
    return Migration(number, f"{number:04}_{name}.sql", script)


def statements(script: str) -> list[str]:
    bare = re.sub(r"--.*", "", script)
    return [text for part in bare.split(";") if (text := " ".join(part.split()))]


@pytest.mark.parametrize("migration", KNOWN[2:], ids=lambda migration: migration.name)
def test_a_step_only_adds_and_says_with_which_code_it_works(migration: Migration) -> None:
    """Its own number means: stop all servers first."""
    assert "-- works with: " in migration.script, "it needs a line `-- works with: NUMBER`"
    assert migration.oldest <= migration.number
    for statement in statements(migration.script):
        assert ADDS.fullmatch(statement), f"code of the version before would notice: {statement}"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE nodes DROP COLUMN ttl",
        "ALTER TABLE nodes RENAME COLUMN ttl TO time",
        "ALTER TABLE nodes ADD COLUMN x BIGINT NOT NULL",
        "ALTER TABLE nodes ALTER COLUMN ttl TYPE TEXT",
        "CREATE UNIQUE INDEX x ON sessions (tenant)",
        "DROP TABLE nodes",
        "UPDATE sessions SET owner = ''",
    ],
)
def test_a_step_that_takes_something_away_is_found(statement: str) -> None:
    assert not ADDS.fullmatch(statement)


async def every_table(postgres: PostgresServer, url: str) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    return [name for (name,) in await postgres.do(query, url)]


async def work(store: PostgresStore) -> None:
    """A bit of everything that servers do."""
    stage = Stage(store)
    session_id = await stage.idle()
    await stage.say(session_id)
    await store.catalog.add(
        "agent", "tenant_1", f"agent_{session_id}", {"name": session_id}, unique_name=False
    )
    await store.workspaces.hold(session_id, "copy_1", 1)
    await store.nodes.tell("node_1", About(name="old"))
    await store.buckets.take(session_id, 10, 1)
    [lease] = await stage.claim()
    await stage.take_all(lease)
    assert await stage.finish(lease)


async def test_old_servers_work_on_and_start_again_while_a_newer_one_changes_the_schema(
    postgres: PostgresServer, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns in every table, and another table: as much as a step may ever do."""
    await work(store)
    tables = await every_table(postgres, url)
    adds = [f"ALTER TABLE {name} ADD COLUMN later TEXT NOT NULL DEFAULT 'x'" for name in tables]
    script = f"-- works with: {NEWEST}\n{';'.join(adds)};CREATE TABLE later (id TEXT PRIMARY KEY);"
    future = step("1_future", script)
    assert all(ADDS.fullmatch(statement) for statement in statements(script))
    async with anyio.create_task_group() as tasks:
        working, enough = anyio.Event(), anyio.Event()

        async def go_on() -> None:
            while not enough.is_set():
                await work(store)
                working.set()

        tasks.start_soon(go_on)
        await working.wait()
        with monkeypatch.context() as newer:
            newer.setattr(migrate, "migrations", lambda: [*KNOWN, future])
            await opening.prepare(url)
        working = anyio.Event()
        with anyio.fail_after(60):
            await working.wait()
        enough.set()
    async with PostgresStore.open(url) as started_again:
        await work(started_again)
    [(number,)] = await postgres.do("SELECT max(number) FROM migrations", url)
    assert number == future.number


async def test_a_schema_that_is_too_far_ahead_is_refused_with_what_to_do(
    postgres: PostgresServer, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = step("1_near", f"-- works with: {NEWEST}\nCREATE TABLE near (id TEXT)")
    far = step("2_far", f"-- works with: {NEWEST + 1}\nCREATE TABLE far (id TEXT)")
    with monkeypatch.context() as newer:
        newer.setattr(migrate, "migrations", lambda: [*KNOWN, near, far])
        await opening.prepare(url)
    with pytest.raises(SchemaTooNew) as refused:
        await opening.prepare(url)
    assert f"schema {far.number}" in refused.value.message
    assert str(NEWEST) in refused.value.message
    assert refused.value.hint
    with monkeypatch.context() as between:
        between.setattr(migrate, "migrations", lambda: [*KNOWN, near])
        await opening.prepare(url)


async def test_a_table_that_somebody_reads_is_waited_for_without_holding_up_the_others(
    postgres: PostgresServer, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"-- works with: {NEWEST}\nALTER TABLE sessions ADD COLUMN later TEXT"
    monkeypatch.setattr(migrate, "migrations", lambda: [*KNOWN, step("1_future", script)])
    monkeypatch.setattr(migrate, "_BRIEFLY", "SET LOCAL lock_timeout = '50ms'")
    backup = await asyncpg.connect(url)
    try:
        await backup.execute("BEGIN")
        await backup.fetch("SELECT id FROM sessions")
        with monkeypatch.context() as impatient:
            impatient.setattr(migrate, "_PATIENCE", 0)
            with pytest.raises(StartupError) as refused:
                await opening.prepare(url)
        assert "backup" in str(refused.value.hint)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opening.prepare, url)
            await Stage(store).session(message())
            await backup.execute("COMMIT")
    finally:
        await backup.close()
    [(number,)] = await postgres.do("SELECT max(number) FROM migrations", url)
    assert number == NEWEST + 1
