"""The contract of keys: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from roost.errors import Conflict, LastAdministrator, NotFound
from roost.ports.keys import Key, UsageLimits
from roost.testing.stage import TENANT, Stage
from roost.testing.store_contract import StoreContract


def _key(id: str, **fields: Any) -> Key:
    given = {"tenant": TENANT, "name": id, "role": "user", "digest": id.encode() + b"\x00\xff"}
    return Key(id=id, hint="rst_…abcd", created_at=0, **(given | fields))


class KeysContract(StoreContract):
    """What authentication relies on, whichever database is behind it."""

    async def test_a_key_is_found_by_its_digest_as_it_was_added(self, stage: Stage) -> None:
        keys = stage.store.keys
        key = _key(
            "key_1",
            role="admin",
            trust_ceiling="full",
            limits=UsageLimits(writes_per_minute=5, reads_per_minute=0, max_sessions=7),
        )
        added = await keys.add(key)
        assert added.created_at > 0
        assert replace(added, created_at=0) == key
        assert await keys.find(key.digest) == added
        assert await keys.find(b"another") is None

    async def test_an_id_and_a_digest_are_given_once(self, stage: Stage) -> None:
        keys = stage.store.keys
        first = await keys.add(_key("key_1"))
        with pytest.raises(Conflict):
            await keys.add(_key("key_1", digest=b"another"))
        with pytest.raises(Conflict):
            await keys.add(_key("key_2", digest=first.digest))
        assert await keys.all() == [first]

    async def test_keys_are_listed_oldest_first_for_all_or_for_one_tenant(
        self, stage: Stage
    ) -> None:
        keys = stage.store.keys
        for n, tenant in enumerate(["tenant_2", TENANT, "tenant_2"]):
            await keys.add(_key(f"key_{9 - n}", tenant=tenant))
        assert [key.id for key in await keys.all()] == ["key_9", "key_8", "key_7"]
        assert [key.id for key in await keys.all("tenant_2")] == ["key_9", "key_7"]

    async def test_a_key_is_changed_in_what_was_given_and_stays_the_same_otherwise(
        self, stage: Stage
    ) -> None:
        keys = stage.store.keys
        key = await keys.add(_key("key_1", limits=UsageLimits(max_sessions=7)))
        changed = await keys.change("key_1", {"name": "other", "trust_ceiling": "vault"})
        assert changed == replace(key, name="other", trust_ceiling="vault")
        assert await keys.find(key.digest) == changed
        limited = await keys.change("key_1", {"limits": UsageLimits(reads_per_minute=1)})
        assert limited == replace(changed, limits=UsageLimits(reads_per_minute=1))

    async def test_a_key_that_opens_nothing_is_not_changed(self, stage: Stage) -> None:
        keys = stage.store.keys
        await keys.add(_key("key_1"))
        await keys.revoke("key_1")
        for key_id in ("key_1", "key_nowhere"):
            with pytest.raises(NotFound):
                await keys.change(key_id, {"name": "other"})

    async def test_a_revoked_key_is_still_known_as_such(self, stage: Stage) -> None:
        keys = stage.store.keys
        await keys.add(_key("key_1"))
        revoked = await keys.revoke("key_1")
        assert revoked.revoked_at is not None
        assert await keys.revoke("key_1") == revoked
        assert await keys.find(revoked.digest) == revoked
        with pytest.raises(NotFound):
            await keys.revoke("key_nowhere")

    async def test_the_last_administrator_s_key_is_not_revoked(self, stage: Stage) -> None:
        keys = stage.store.keys
        await keys.add(_key("key_1", role="admin"))
        await keys.add(_key("key_2", role="admin", tenant="tenant_2"))
        await keys.add(_key("key_3"))
        first = await keys.revoke("key_1")
        with pytest.raises(LastAdministrator):
            await keys.revoke("key_2")
        assert await keys.revoke("key_1") == first  # again: the same answer
        assert (await keys.find(b"key_2\x00\xff")).revoked_at is None  # type: ignore[union-attr]

    async def test_of_two_administrators_who_revoke_each_other_at_once_one_stays(
        self, stage: Stage
    ) -> None:
        keys = stage.store.keys
        ids = ("key_1", "key_2", "key_3")
        for key_id in ids:
            await keys.add(_key(key_id, role="admin"))
        refused: list[str] = []

        async def revoke(key_id: str) -> None:
            try:
                await keys.revoke(key_id)
            except LastAdministrator:
                refused.append(key_id)

        async with anyio.create_task_group() as tasks:
            for key_id in ids:
                tasks.start_soon(revoke, key_id)
        assert [key.id for key in await keys.all() if key.revoked_at is None] == refused
        assert len(refused) == 1
