"""What is taken back at one node ends at the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from roost.core.keys import Keyring
from roost.core.logins import Logins
from roost.core.revocations import Opener, Revocations
from roost.errors import Unauthenticated
from roost.ports.bell import Bell
from roost.stores.bell import LocalBell
from roost.stores.sqlite import SqliteStore


class Side:
    """One of two nodes: whom it knows, and what is open there."""

    def __init__(self, store: SqliteStore, bell: Bell) -> None:
        self.keyring = Keyring(store.keys)
        self.logins = Logins(store.catalog, self.keyring, seconds=60)
        self.open: set[Opener] = set()
        self.closed: list[str] = []
        self.changed = anyio.Event()
        self.revocations = Revocations(
            self.keyring, self.logins, bell, lambda: self.open, self._close
        )

    def _close(self, opener: str) -> None:
        self.closed.append(opener)
        self.open = {each for each in self.open if opener not in each}
        self.changed.set()


@asynccontextmanager
async def two(folder: Path, bell: Bell | None = None) -> AsyncGenerator[tuple[Side, Side], None]:
    bell = bell or LocalBell()
    async with SqliteStore.open(folder / "roost.db") as store, anyio.create_task_group() as tasks:
        here, there = Side(store, bell), Side(store, bell)
        await tasks.start(there.revocations.run)
        yield here, there
        tasks.cancel_scope.cancel()


async def test_a_key_revoked_at_one_node_opens_nothing_at_the_other_and_ends_what_it_opened(
    tmp_path: Path,
):
    async with two(tmp_path) as (here, there):
        key, secret = await here.keyring.create(tenant="t", name="one")
        other, other_secret = await here.keyring.create(tenant="t", name="other")
        assert (await there.keyring.recognise(secret)).id == key.id
        there.open = {(key.id, None), (other.id, None)}
        await here.keyring.revoke(key.id)
        assert (await there.keyring.recognise(secret)).id == key.id, "it is remembered for seconds"
        here.revocations.tell(key.id)
        assert here.closed == [key.id]
        with anyio.fail_after(20):
            await there.changed.wait()
        assert there.closed == [key.id]
        with pytest.raises(Unauthenticated):
            await there.keyring.recognise(secret)
        assert (await there.keyring.recognise(other_secret)).id == other.id


async def test_a_logout_at_one_node_is_one_at_the_other(tmp_path: Path):
    async with two(tmp_path) as (here, there):
        key, secret = await here.keyring.create(tenant="t", name="one")
        login, cookie = await here.logins.begin(secret)
        stays, _ = await here.logins.begin(secret)
        assert (await there.logins.recognise(cookie)).id == login.id
        there.open = {(key.id, login.id), (key.id, stays.id)}
        await here.logins.end(login.id)
        here.revocations.tell(login.id)
        with anyio.fail_after(20):
            await there.changed.wait()
        assert there.closed == [login.id]
        with pytest.raises(Unauthenticated):
            await there.logins.recognise(cookie)
