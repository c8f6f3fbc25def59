"""What SQLite's store answers from memory is what it would read: also after writers that were given up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contracts.sqlite_batch import Doing
from tests.striking import WAYS, cancelled

from roost.errors import RoostError
from roost.ports.drafts import new_draft
from roost.ports.sessions import Revised
from roost.stores.sqlite import SqliteStore
from roost.stores.sqlite.transaction import SqliteTransaction
from roost.testing.stage import Stage, message


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def histories(folder: Path, number: int) -> None:
    rng = random.Random(seed := random.SystemRandom().randrange(2**32))
    print(f"seed {seed}: {number} histories")
    async with SqliteStore.open(folder / "roost.db") as store:
        stage = Stage(store)
        ids = [await stage.session(tenant=f"tenant_{n}") for n in range(3)]
        for step in range(number):
            place = rng.randrange(3)
            work = change(store, f"tenant_{place}", ids[place], step, rng)
            end = await cancelled(work, rng.randrange(1, 4), rng.choice(WAYS))
            assert end.error is None or isinstance(end.error, RoostError), end.error
            await store.log.renew("node", 60)  # after it: the writer takes one after the other
            for n, session_id in enumerate(ids):
                known = await look(store, session_id)
                store.sessions._last_seen.clear()
                assert await look(store, session_id) == known
                if known:
                    assert known[0].tenant == f"tenant_{n}"
                else:
                    ids[n] = await stage.session(tenant=f"tenant_{n}")


async def look(store: SqliteStore, session_id: str) -> list[Any]:
    try:
        found = await store.sessions.find(session_id)
        with_inputs, inputs = await store.sessions.with_inputs(session_id)
    except RoostError:
        return []
    return [replace(found, read_at=0), replace(with_inputs, read_at=0), inputs]


async def change(
    store: SqliteStore, tenant: str, session_id: str, step: int, rng: random.Random
) -> None:
    def title(now: Any) -> Revised:
        said = new_draft("session.updated", title=str(step))
        return Revised(replace(now.spec, title=str(step)), [said])

    kind = rng.choice(("say", "say", "title", "title", "archive", "delete"))
    if kind == "say":
        await store.log.accept(session_id, [message(str(step))])
    elif kind == "title":
        await store.sessions.revise(tenant, session_id, title)
    elif kind == "archive":
        await store.sessions.archive(tenant, session_id)
    else:
        await store.sessions.delete(tenant, session_id)


async def test_what_is_answered_from_memory_is_what_would_be_read(tmp_path: Path) -> None:
    await histories(tmp_path, 200)


async def test_a_spec_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def titled(now: Any) -> Revised:
        return Revised(replace(now.spec, title="new"), [new_draft("session.updated", title="new")])

    async with SqliteStore.open(tmp_path / "roost.db") as store:
        session_id = await Stage(store).session(tenant="tenant")
        await store.log.accept(session_id, [message("one")])
        look_at = store.sessions._look_at

        async def overtaken(session_id: str, look: Any) -> Any:
            found = await look_at(session_id, look)
            await store.sessions.revise("tenant", session_id, titled)
            return found

        store.sessions._last_seen.clear()
        with monkeypatch.context() as patched:
            patched.setattr(store.sessions, "_look_at", overtaken)
            assert (await store.sessions.find(session_id)).spec.title != "new"
        assert (await store.sessions.find(session_id)).spec.title == "new"


async def test_after_a_write_a_session_is_known_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        session_id = await Stage(store).session(tenant="tenant")
        await store.log.accept(session_id, [message("one")])
        before = await store.sessions.find(session_id)

        async def unread(session_id: str, look: Any) -> Any:
            raise AssertionError("the database was asked")

        monkeypatch.setattr(store.sessions, "_look_at", unread)
        await store.log.accept(session_id, [message("two")])
        after = await store.sessions.find(session_id)
        assert after.state.head == before.state.head + 1
        assert after.updated_at > before.updated_at
        assert after.spec == before.spec


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_in_ten_thousand_histories_memory_is_what_would_be_read(tmp_path: Path) -> None:
    await histories(tmp_path, 10_000)


async def test_a_session_is_shown_as_committed_only_when_it_is(tmp_path: Path):
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        session_id, writer = await Stage(store).session(message()), store._writer
        before = writer.settled(session_id)
        assert before is not None

        def change(tx: SqliteTransaction) -> None:
            session = tx.session(session_id)
            tx.put(session, replace(session.state, sent=session.state.sent + 1))
            assert writer.settled(session_id) is None

        def change_in_vain(tx: SqliteTransaction) -> None:
            change(tx)
            raise ValueError("a bug")

        with pytest.raises(ValueError, match="a bug"):
            await writer.do(Doing(change_in_vain))
        assert writer.settled(session_id) is None, "what was rolled back is not believed"
        assert (await store.sessions.find(session_id)).state == before.state
        await writer.do(Doing(change))
        after = writer.settled(session_id)
        assert after is not None and after.state.sent == before.state.sent + 1
