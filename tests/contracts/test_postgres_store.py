"""What is PostgreSQL's own: the start, the schema, groups, nodes that die, and hints between nodes."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import anyio
import anyio.to_thread
import asyncpg
import pytest
from tests.contracts.postgres_notifiers import two_notifiers

from roost.cli import doctor as doctors
from roost.config import Settings
from roost.domain.events import Draft, Preview
from roost.domain.ledger import Batch
from roost.domain.session import Lease, Session
from roost.errors import LeaseLost, SchemaTooNew, StartupError
from roost.ports.notifier import WORK
from roost.stores.postgres import (
    PostgresNotifier,
    PostgresStore,
    driver,
    leases,
    migrate,
    opening,
    writer,
)
from roost.stores.postgres.driver import worded
from roost.stores.sql import catalog
from roost.stores.sql.steps import Migration
from roost.testing.postgres import PASSWORD, PostgresServer
from roost.testing.stage import TENANT, Stage, answer, message, numbers

PLANS = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"


@pytest.fixture
async def store(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[PostgresStore]:
    monkeypatch.setattr(writer, "_LANES", 1)
    async with PostgresStore.open(url) as store:
        yield store


async def together(*calls: Any) -> list[Any]:
    """The outcomes of calls that gather behind the first, and are committed in one batch."""
    outcomes: list[Any] = [None] * len(calls)

    async def call(n: int) -> None:
        try:
            outcomes[n] = await calls[n]
        except Exception as error:  # noqa: BLE001 - the outcome is what the test looks at
            outcomes[n] = error

    async with anyio.create_task_group() as tasks:
        for n in range(len(calls)):
            tasks.start_soon(call, n)
    return outcomes


HOLDER = """
SELECT pid FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objid::bigint = hashtext('node_1')::bigint & 4294967295
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    """What is found once something is."""
    with anyio.fail_after(60):
        while not (found := await look()):  # noqa: ASYNC110 - nobody tells when
            await anyio.sleep(0.05)
    return found


# The start


async def refusal(url: str) -> StartupError:
    with pytest.raises(StartupError) as refused:
        async with PostgresStore.open(url):
            pass
    assert refused.value.hint
    for part in (PASSWORD, "not-in-any-log"):
        assert part not in refused.value.message + refused.value.hint
        assert part not in str(refused.value.__cause__)
    return refused.value


async def test_what_keeps_it_from_starting_is_said_without_the_password(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PATIENCE", 0.1)
    wrong = await refusal(postgres.url(password="not-in-any-log-either"))
    assert "the user or the password" in wrong.message
    assert "no database" in (await refusal(postgres.url("nowhere"))).message
    away = await refusal(url.replace(str(postgres.folder), "/tmp/roost-nowhere"))
    assert "cannot connect to the database at /tmp/roost-nowhere/" in away.message
    malformed = await refusal(f"postgresql://roost:{PASSWORD}@/x")
    assert "not a URL" in malformed.message
    monkeypatch.setattr(opening, "_OLDEST", 99)
    assert "needs 99 or newer" in (await refusal(url)).message


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://roost:secret@db:5432/name", "db:5432/name"),
        ("postgresql://roost:123/secret@db/name", "db/name"),
        ("postgresql://roost:1?secret@2@db/name?sslmode=require", "db/name"),
        ("postgresql://roost:secret@one,two/name", "one,two/name"),
        ("postgresql://roost:secret@/name?host=/run/pg", "/run/pg/name"),
        ("postgresql:///name", "the local server/name"),
        ("postgresql://db/name?password=secret@x", "the address in ROOST_DATABASE_URL"),
    ],
)
def test_a_place_is_named_without_the_password_however_it_is_written(url: str, place: str) -> None:
    assert opening.place_of(url) == place


async def test_roost_doctor_says_which_database_it_is_or_why_not(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doctor(found: str) -> doctors.Finding:
        return doctors.database(Settings.read({"ROOST_DATABASE_URL": found}))

    healthy = await anyio.to_thread.run_sync(doctor, url)
    assert (healthy.level, healthy.said.split()[0]) == ("ok", "PostgreSQL")
    assert PASSWORD not in healthy.said
    sick = await anyio.to_thread.run_sync(doctor, postgres.url("nowhere"))
    assert (sick.level, bool(sick.fix)) == ("fail", True)
    assert doctor("sqlite:///x.db").said.startswith("SQLite")


async def test_a_standby_is_not_taken_for_a_server_that_writes(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PATIENCE", 0.1)
    name = url.partition("@/")[2].partition("?")[0]
    await postgres.do(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "read-only" in (await refusal(url)).message


async def test_a_database_that_may_not_be_changed_says_what_to_grant(
    postgres: PostgresServer, url: str
) -> None:
    await postgres.do("CREATE ROLE guest LOGIN PASSWORD 'x'")
    refused = await refusal(
        url.replace("roost:", "guest:").replace(url.split(":")[2].split("@")[0], "x")
    )
    assert "GRANT" in str(refused.hint)


PREPARE = """
import sys, anyio
from roost.stores.postgres.opening import prepare
anyio.run(prepare, sys.argv[1])
"""


async def test_ten_nodes_that_start_at_once_make_the_schema_once(
    postgres: PostgresServer, url: str
) -> None:
    command = [sys.executable, "-c", PREPARE, url]
    async with anyio.create_task_group() as nodes:
        for _ in range(10):
            nodes.start_soon(anyio.run_process, command)  # raises if one fails
    rows = await postgres.do("SELECT number, name FROM migrations ORDER BY number", url)
    known = [(step.number, step.name) for step in migrate.migrations()]
    assert [tuple(row) for row in rows] == known
    assert [number for number, _ in known] == list(range(1, len(known) + 1))


async def test_a_database_of_a_newer_roost_is_left_alone(
    postgres: PostgresServer, url: str
) -> None:
    await opening.prepare(url)
    await postgres.do("INSERT INTO migrations VALUES (9999, '9999_future.sql')", url)
    with pytest.raises(SchemaTooNew):
        await opening.prepare(url)


async def test_a_migration_that_fails_leaves_the_database_as_it_was(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opening.prepare(url)
    script = "CREATE TABLE half (a int); SELECT nonsense;"
    steps = [*migrate.migrations(), Migration(9999, "9999_broken.sql", script)]
    monkeypatch.setattr(migrate, "migrations", lambda: steps)
    with pytest.raises(StartupError, match="nonsense"):
        await opening.prepare(url)
    assert await postgres.do("SELECT 1 FROM pg_class WHERE relname = 'half'", url) == []


async def test_nodes_at_work_do_not_notice_that_a_newer_one_adds_to_the_schema(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await Stage(store).session(message())
    script = "ALTER TABLE sessions ADD COLUMN later TEXT; CREATE TABLE more (a int);"
    steps = [*migrate.migrations(), Migration(9999, "9999_more.sql", script)]
    monkeypatch.setattr(migrate, "migrations", lambda: steps)
    async with PostgresStore.open(url) as newer:
        await Stage(newer).say(session_id)
        await Stage(store).say(session_id)
        assert numbers(await Stage(store).all(session_id)) == [1, 2, 3, 4, 5]
        assert (await Stage(store).claim())[0].session_id == session_id


async def test_servers_agree_on_what_the_first_one_brought(store: PostgresStore, url: str) -> None:
    async with PostgresStore.open(url) as other:
        assert await store.share("tokens", b"first") == b"first"
        assert await other.share("tokens", b"second") == b"first"
        assert await other.share("more", b"third") == b"third"


# Groups


async def test_a_runner_that_was_fenced_off_drops_out_of_a_batch_without_failing_it(
    store: PostgresStore,
) -> None:
    stage = Stage(store)
    for _ in range(10):
        await stage.session(message())
    leases = await stage.claim()
    stale = [Lease(lease.session_id, lease.node, 0) for lease in leases[:3]]
    batch = Batch(drafts=[answer()])
    outcomes = await together(*(store.log.append(lease, batch) for lease in [*stale, *leases]))
    assert [type(o) for o in outcomes] == [LeaseLost] * 3 + [list] * 10
    for lease in leases:
        assert numbers(await stage.all(lease.session_id)) == [1, 2, 3, 4]


async def test_what_gathers_during_a_transaction_is_committed_together(
    postgres: PostgresServer, store: PostgresStore, url: str
) -> None:
    sessions = [await Stage(store).session(message()) for _ in range(50)]
    before = await commits(postgres, url)
    await together(*(Stage(store).say(session_id) for session_id in sessions))
    assert await commits(postgres, url) - before <= 3


async def test_a_writer_s_statements_are_planned_once(store: PostgresStore) -> None:
    stage = Stage(store)
    session_id = await stage.session()
    for n in range(8):
        await stage.say(session_id, str(n))
    [lane] = cast(Any, store.log)._writer._lanes
    async with lane._connection.connected() as connection:
        [(once, each_time)] = await connection.fetch(PLANS)
    assert once >= 16, "the rows are locked by one statement, and written by another"
    assert each_time == 0


async def commits(server: PostgresServer, url: str) -> int:
    return int((await server.do("SELECT max(batch) FROM commits", url))[0][0])


async def test_a_bug_in_one_operation_fails_no_other(store: PostgresStore) -> None:
    stage = Stage(store)
    sessions = [await stage.session(message()) for _ in range(5)]

    def bug(session: Session) -> Any:
        raise ZeroDivisionError

    strange = Draft("user\x00message", b"{}", "sevt_strange")
    outcomes = await together(
        *(stage.say(session_id) for session_id in sessions),
        store.log.accept(sessions[0], [strange]),
        store.sessions.revise(TENANT, sessions[0], bug),
        *(stage.say(session_id) for session_id in sessions),
    )
    assert [type(o).__name__ for o in outcomes] == (
        ["Accepted"] * 5 + ["InvalidRequest", "ZeroDivisionError"] + ["Accepted"] * 5
    )
    for session_id in sessions:
        assert numbers(await stage.all(session_id)) == [1, 2, 3, 4, 5]


async def test_nodes_that_write_to_the_same_sessions_leave_no_gap(
    store: PostgresStore, url: str
) -> None:
    sessions = [await Stage(store).session(message()) for _ in range(8)]
    async with PostgresStore.open(url) as other:

        async def send(mine: PostgresStore, session_id: str) -> None:
            for _ in range(15):
                await Stage(mine).say(session_id)

        async with anyio.create_task_group() as tasks:
            for session_id in sessions:
                for mine in (store, other, store, other):
                    tasks.start_soon(send, mine, session_id)
    for session_id in sessions:
        assert numbers(await Stage(store).all(session_id)) == list(range(1, 64))
        assert len(await store.log.inputs(session_id)) == 61


async def test_a_caller_that_gave_up_leaves_the_others_unharmed(store: PostgresStore) -> None:
    stage = Stage(store)
    session_id = await stage.session(message())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stage.say(session_id)
    for _ in range(20):
        with anyio.move_on_after(0.001):
            await stage.say(session_id)
        with anyio.move_on_after(0.001):
            await stage.all(session_id)
    await stage.say(session_id)
    log = await stage.all(session_id)
    assert numbers(log) == list(range(1, len(log) + 1))


# Nodes


async def test_a_session_is_left_to_the_node_that_has_its_workspace(store: PostgresStore) -> None:
    stage = Stage(store)
    await store.catalog.add("workspace", TENANT, "wksp_1", {}, unique_name=False)
    for node in ("node_a", "node_b"):
        await store.log.renew(node, 60)
    await store.workspaces.take("wksp_1", "node_a")
    inside = await stage.session(message(), workspace="wksp_1")
    outside = await stage.session(message())
    assert [lease.session_id for lease in await stage.claim("node_b")] == [outside]
    await store.workspaces.leave("wksp_1", "node_a")
    [lease] = await stage.claim("node_b")
    assert lease.session_id == inside
    await store.log.release(lease)
    await store.workspaces.take("wksp_1", "node_a")
    await store.log.renew("node_a", 0)  # it is gone, and with it what it had
    assert [lease.session_id for lease in await stage.claim("node_b")] == [inside]


async def test_a_node_that_dies_is_found_before_its_time_has_run_out(
    postgres: PostgresServer, store: PostgresStore, url: str
) -> None:
    async with PostgresStore.open(url) as dying:
        session_id = await Stage(dying).session(message())
        [old] = await Stage(dying).claim("node_dying")
        await eventually(lambda: postgres.do("SELECT 1 FROM nodes WHERE locked_at > 0", url))
    await store.log.renew("node_1", 60)
    leases = await eventually(lambda: store.log.claim("node_1", 5))
    assert leases == [Lease(session_id, "node_1", old.generation + 1)]
    with pytest.raises(LeaseLost):
        await store.log.append(old, Batch(drafts=[answer()]))


async def test_a_node_that_only_lost_its_connections_keeps_its_sessions(
    postgres: PostgresServer, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SURE", 60)  # however long this machine takes to connect again
    await Stage(store).session(message())
    [lease] = await Stage(store).claim("node_1")
    async with PostgresStore.open(url) as other:
        await other.log.renew("node_2", 60)
        holder = await eventually(lambda: postgres.do(HOLDER, url))
        for _ in range(3):
            before = holder
            await postgres.cut(url)
            while not holder or holder == before:
                holder = await eventually(lambda: postgres.do(HOLDER, url))
            assert await other.log.claim("node_2", 5) == []
    await store.log.append(lease, Batch(drafts=[answer()]))


async def test_a_session_that_somebody_holds_keeps_no_other_from_being_claimed(
    store: PostgresStore, url: str
) -> None:
    sessions = [await Stage(store).session(message()) for _ in range(3)]
    stopped = await asyncpg.connect(url)
    await stopped.execute("BEGIN")
    await stopped.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", sessions[1])
    leases = await Stage(store).claim()
    assert [lease.session_id for lease in leases] == [sessions[0], sessions[2]]
    await stopped.close()
    assert [lease.session_id for lease in await Stage(store).claim()] == [sessions[1]]


# Hints


@pytest.fixture
async def notifiers(url: str) -> AsyncGenerator[tuple[PostgresNotifier, PostgresNotifier]]:
    async with two_notifiers(url) as both:
        yield both


async def test_a_notification_is_heard_on_the_other_node(
    notifiers: tuple[PostgresNotifier, PostgresNotifier],
) -> None:
    here, there = notifiers
    with (
        there.subscribe("sesn_1") as subscription,
        there.subscribe(WORK) as work,
        there.subscribe("x") as other,
    ):
        for n in range(500):
            here.notify(f"sesn_{n}")
        here.notify(WORK)
        assert await subscription.wait(60)
        assert subscription.notified()
        assert await work.wait(60)
        assert not other.notified()


async def test_previews_are_shown_on_the_other_node_in_order_however_long(
    notifiers: tuple[PostgresNotifier, PostgresNotifier],
) -> None:
    here, there = notifiers
    texts = ["", "short", "long \x00 🙂" * 2000, "end"]
    with there.subscribe("sesn_1", previews=True) as subscription:
        for text in texts:
            here.publish("sesn_1", Preview("sevt_1", "agent.message", text, 7))
        seen: list[Preview] = []
        with anyio.fail_after(60):
            while not "".join(p.text for p in seen).endswith("end"):
                await subscription.wait(1)
                seen += subscription.previews()
    assert seen[0] == Preview("sevt_1", "agent.message", "", 7)
    assert "".join(preview.text for preview in seen) == "".join(texts)
    assert {preview.after for preview in seen} == {7}


async def test_a_preview_whose_beginning_was_lost_is_not_shown(
    notifiers: tuple[PostgresNotifier, PostgresNotifier],
) -> None:
    here, there = notifiers
    here._sent.advance(Preview("sevt_1", "agent.message", "lost", 7))
    with there.subscribe("sesn_1", previews=True) as subscription:
        here.publish("sesn_1", Preview("sevt_1", "agent.message", "middle", 7))
        here.publish("sesn_1", Preview("sevt_2", "agent.message", "", 7))
        assert await subscription.wait(60)
        assert [preview.event_id for preview in subscription.previews()] == ["sevt_2"]


async def test_a_listener_that_lost_its_connection_notifies_of_whatever_it_missed(
    postgres: PostgresServer, url: str, notifiers: tuple[PostgresNotifier, PostgresNotifier]
) -> None:
    _, there = notifiers
    for _ in range(3):
        with there.subscribe("sesn_1") as subscription:
            await postgres.cut(url)
            assert await subscription.wait(60)
            assert subscription.notified()


async def test_what_is_not_due_is_not_looked_at(store: PostgresStore) -> None:
    for n in range(200):
        due_at = 10**15 + n if n % 2 else None
        await store.catalog.add("task", TENANT, f"task_{n}", {}, unique_name=False, due_at=due_at)
    explain = worded(f"EXPLAIN {catalog.DUE}")
    plan = await store._database.ask(lambda db: db.fetch(explain, "task", 1, 9))
    steps = " | ".join(step for (step,) in plan)
    assert "Index Scan using records_due on records" in steps
    assert "Sort" not in steps.replace("Incremental Sort", ""), "what is due is sorted by the index"
    assert await store.catalog.due("task", 10**14, limit=9) == []
