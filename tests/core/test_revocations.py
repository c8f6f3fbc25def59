"""What is taken back at one node ends at the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from roost.core.access.environment_keys import EnvironmentKeys
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.core.access.revocations import Opener, Revocations
from roost.errors import Unauthenticated
from roost.ports.notifier import Notifier
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore


class Side:
    """One of two nodes: whom it knows, and what is open there."""

    def __init__(self, store: SqliteStore, notifier: Notifier) -> None:
        self.keyring = Keyring(store.keys)
        self.logins = Logins(store.catalog, self.keyring, seconds=60)
        self.open: set[Opener] = set()
        self.closed: list[str] = []
        self.changed = anyio.Event()
        self.revocations = Revocations(
            self.keyring,
            self.logins,
            EnvironmentKeys(store.catalog),
            notifier,
            lambda: self.open,
            self._close,
        )

    def _close(self, opener: str) -> None:
        self.closed.append(opener)
        self.open = {each for each in self.open if opener not in each}
        self.changed.set()


@asynccontextmanager
async def two(
    folder: Path, notifier: Notifier | None = None
) -> AsyncGenerator[tuple[Side, Side], None]:
    notifier = notifier or LocalNotifier()
    async with SqliteStore.open(folder / "roost.db") as store, anyio.create_task_group() as tasks:
        here, there = Side(store, notifier), Side(store, notifier)
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
        with anyio.fail_after(60):
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
        with anyio.fail_after(60):
            await there.changed.wait()
        assert there.closed == [login.id]
        with pytest.raises(Unauthenticated):
            await there.logins.recognise(cookie)


class Late:
    """A store whose answers arrive late: `read` is set when one was given, `go` lets them arrive."""

    def __init__(self, inner: Any, *names: str) -> None:
        self._inner = inner
        self._names = names
        self.read, self.go = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        async def late(*args: Any) -> Any:
            answer = await found(*args)
            self.read.set()
            await self.go.wait()
            return answer

        return late


@pytest.mark.parametrize("by", ["secret", "id"])
async def test_a_look_at_a_key_that_is_revoked_meanwhile_does_not_bring_it_back(
    tmp_path: Path, by: str
):
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        keys = Late(store.keys, "find", "all")
        keyring = Keyring(keys)  # type: ignore[arg-type]
        key, secret = await keyring.create(tenant="t", name="one")

        async def recognise() -> None:
            with pytest.raises(Unauthenticated):
                await (keyring.recognise(secret) if by == "secret" else keyring.named("t", key.id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recognise)
            await keys.read.wait()
            await keyring.revoke(key.id)
            keys.go.set()
        await recognise()  # nor is it remembered


async def test_a_look_at_a_login_that_ends_meanwhile_does_not_bring_it_back(tmp_path: Path):
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        catalog = Late(store.catalog, "get")
        keyring = Keyring(store.keys)
        logins = Logins(catalog, keyring, seconds=60)  # type: ignore[arg-type]
        _, secret = await keyring.create(tenant="t", name="one")
        login, cookie = await logins.begin(secret)

        async def recognise() -> None:
            with pytest.raises(Unauthenticated):
                await logins.recognise(cookie)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recognise)
            await catalog.read.wait()
            await logins.end(login.id)
            catalog.go.set()
        await recognise()


async def test_a_look_at_a_key_that_is_changed_meanwhile_does_not_bring_back_what_it_could_do(
    tmp_path: Path,
):
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        keys = Late(store.keys, "find")
        keyring = Keyring(keys)  # type: ignore[arg-type]
        key, secret = await keyring.create(tenant="t", name="one", trust_ceiling="full")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keyring.recognise, secret)
            await keys.read.wait()
            await keyring.change(key.id, {"trust_ceiling": "sandboxed"})
            keys.go.set()
        assert (await keyring.recognise(secret)).trust_ceiling == "sandboxed"


async def test_what_is_remembered_of_revoked_keys_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.access.keys._MOST_CACHED", 3)
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        keyring = Keyring(store.keys)
        for number in range(10):
            key, secret = await keyring.create(tenant="t", name=str(number))
            await keyring.recognise(secret)
            await keyring.revoke(key.id)
            with pytest.raises(Unauthenticated):
                await keyring.recognise(secret)
        assert len(keyring._revoked) == 3
        kept = [(await keyring.create(tenant="t", name="kept"))[1] for _ in range(5)]
        for secret in kept:
            await keyring.recognise(secret)
        assert len(keyring._known) == 3
