"""The contract of vaults' credentials: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from roost.domain.vault import (
    MOST_CREDENTIALS,
    MOST_KEPT,
    EnvironmentVariable,
    InjectionLocation,
    SecretNetworking,
    StaticBearer,
    VaultCredential,
)
from roost.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from roost.ports.credentials import CredentialQuery
from roost.testing.stage import TENANT, Stage
from roost.testing.store_contract import StoreContract


def _new(id: str, vault_id: str = "vlt_1", **fields: Any) -> VaultCredential:
    auth = StaticBearer(mcp_server_url=f"https://mcp.example/{id}")
    given: dict[str, Any] = {"tenant": TENANT, "vault_id": vault_id, "auth": auth}
    given["sealed"] = f"sealed {id}"
    return VaultCredential(id=id, **(given | fields))


def _variable(name: str) -> EnvironmentVariable:
    return EnvironmentVariable(
        secret_name=name,
        networking=SecretNetworking(type="limited", allowed_hosts=["api.example"]),
        injection_location=InjectionLocation(header=True),
    )


async def _vault(stage: Stage, vault_id: str = "vlt_1", tenant: str = TENANT) -> None:
    body = {"display_name": vault_id, "metadata": {}}
    await stage.store.catalog.add("vault", tenant, vault_id, body, unique_name=False)


class CredentialsContract(StoreContract):
    """What vaults rely on, whichever database is behind them."""

    async def test_a_credential_is_found_as_it_was_added(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        given = _new("vcrd_1", auth=_variable("TOKEN"), display_name="é", metadata={"a": "b"})
        added = await rows.add(given)
        assert added.created_at == added.updated_at > 0
        assert replace(added, created_at=0, updated_at=0) == given
        assert await rows.get(TENANT, "vlt_1", "vcrd_1") == await rows.find("vcrd_1") == added
        for which in (("tenant_2", "vlt_1"), (TENANT, "vlt_2")):
            with pytest.raises(NotFound):
                await rows.get(*which, "vcrd_1")
        with pytest.raises(NotFound):
            await rows.find("vcrd_2")

    async def test_only_a_vault_that_is_there_and_open_takes_one(self, stage: Stage) -> None:
        rows = stage.store.credentials
        with pytest.raises(NotFound):
            await rows.add(_new("vcrd_1"))
        await _vault(stage, tenant="tenant_2")
        with pytest.raises(NotFound):
            await rows.add(_new("vcrd_1"))
        await rows.archive_vault("tenant_2", "vlt_1")
        with pytest.raises(InvalidRequest):
            await rows.add(_new("vcrd_1", tenant="tenant_2"))

    async def test_no_two_in_use_have_one_key_and_an_archived_one_frees_it(
        self, stage: Stage
    ) -> None:
        await _vault(stage)
        await _vault(stage, "vlt_2")
        rows = stage.store.credentials
        first = await rows.add(_new("vcrd_1"))
        with pytest.raises(Conflict):
            await rows.add(_new("vcrd_2", auth=first.auth))
        await rows.add(_new("vcrd_3", "vlt_2", auth=first.auth))
        await rows.archive(first)
        await rows.add(_new("vcrd_2", auth=first.auth))

    async def test_of_many_that_ask_for_one_key_at_once_one_gets_it(self, stage: Stage) -> None:
        await _vault(stage)
        auth, made = _variable("TOKEN"), []

        async def add(n: int) -> None:
            try:
                made.append(await stage.store.credentials.add(_new(f"vcrd_{n}", auth=auth)))
            except Conflict:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(add, n)
        assert len(made) == 1

    async def test_a_vault_has_so_many_in_use_and_so_many_with_archived_ones(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        made = [await rows.add(_new(f"vcrd_{n}")) for n in range(MOST_CREDENTIALS)]
        with pytest.raises(InvalidRequest, match="at most 20 credentials"):
            await rows.add(_new("vcrd_more"))
        await rows.archive(made[0])
        await rows.add(_new("vcrd_more"))
        await rows.archive(made[1])
        assert MOST_KEPT == 1000
        monkeypatch.setattr("roost.stores.sql.credentials.MOST_KEPT", MOST_CREDENTIALS + 1)
        with pytest.raises(QuotaExceeded):
            await rows.add(_new("vcrd_again"))
        await rows.delete(made[0])
        await rows.add(_new("vcrd_again"))

    async def test_pages_are_newest_first_and_go_on_after_one_that_was_deleted(
        self, stage: Stage
    ) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        made = [await rows.add(_new(f"vcrd_{n}")) for n in range(5)]
        await rows.archive(made[3])
        query = CredentialQuery(tenant=TENANT, vault_id="vlt_1", limit=2)
        assert [c.id for c in await rows.page(query)] == ["vcrd_4", "vcrd_2"]
        every = replace(query, include_archived=True)
        assert [c.id for c in await rows.page(every)] == ["vcrd_4", "vcrd_3"]
        await rows.delete(made[2])
        after = replace(query, after="vcrd_2")
        assert [c.id for c in await rows.page(after)] == ["vcrd_1", "vcrd_0"]
        with pytest.raises(InvalidRequest):
            await rows.page(replace(query, after="vcrd_none"))
        assert await rows.page(replace(query, tenant="tenant_2")) == []

    async def test_those_in_use_come_in_the_order_of_their_vaults(self, stage: Stage) -> None:
        await _vault(stage)
        await _vault(stage, "vlt_2")
        rows = stage.store.credentials
        a, b = await rows.add(_new("vcrd_a")), await rows.add(_new("vcrd_b", "vlt_2"))
        c = await rows.add(_new("vcrd_c"))
        assert await rows.active(TENANT, ["vlt_2", "vlt_1"]) == [b, a, c]
        await rows.archive(a)
        assert await rows.active(TENANT, ["vlt_1", "vlt_2", "vlt_none"]) == [c, b]
        assert await rows.active("tenant_2", ["vlt_1"]) == await rows.active(TENANT, []) == []

    async def test_a_change_is_a_version_and_the_same_again_is_none(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        first = await rows.add(_new("vcrd_1"))
        after = await rows.change(first, lambda c, now: replace(c, sealed="other", metadata={}))
        assert (after.version, after.sealed) == (2, "other")
        assert after.updated_at >= first.updated_at
        assert await rows.change(first, lambda c, now: c) == after == await rows.find("vcrd_1")
        with pytest.raises(Conflict):
            await rows.change(first, lambda c, now: replace(c, sealed="x"), expected=1)
        await rows.change(first, lambda c, now: replace(c, sealed="x"), expected=2)
        with pytest.raises(NotFound):
            await rows.change(replace(first, tenant="tenant_2"), lambda c, now: c)

    async def test_changes_at_once_lose_nothing(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        first = await rows.add(_new("vcrd_1"))

        async def note(n: int) -> None:
            await rows.change(
                first, lambda c, now: replace(c, metadata={**c.metadata, str(n): "x"})
            )

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(note, n)
        found = await rows.find("vcrd_1")
        assert (found.version, len(found.metadata)) == (9, 8)

    async def test_one_holder_has_the_lease_of_a_version_until_it_ends(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        first = await rows.add(_new("vcrd_1"))
        assert await rows.lease(first, "one", 60) is not None
        assert await rows.lease(first, "one", 60) is not None
        assert await rows.lease(first, "two", 60) is None
        assert await rows.lease(first, "one", 0) is not None  # over at once
        assert await rows.lease(first, "two", 60) is not None
        after = await rows.change(first, lambda c, now: replace(c, sealed="new"))
        assert await rows.lease(first, "two", 60) is None  # of a version that is over
        assert await rows.lease(after, "one", 60) is None  # "two" may have used what it read
        same = await rows.change(after, lambda c, now: c, ends_lease="one")
        assert await rows.lease(same, "one", 60) is None  # it was not the lease of "one" to end
        same = await rows.change(after, lambda c, now: c, ends_lease="two")
        assert same == after
        assert await rows.lease(after, "one", 60) is not None
        archived = await rows.archive(after)
        assert await rows.lease(archived, "one", 60) is None
        assert await rows.lease(_new("vcrd_none"), "one", 60) is None

    async def test_an_archived_one_has_no_secret_and_stays_so(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        archived = await rows.archive(await rows.add(_new("vcrd_1")))
        assert archived.sealed is None
        assert archived.archived_at == archived.updated_at
        assert await rows.archive(archived) == archived == await rows.find("vcrd_1")

    async def test_a_vault_is_archived_with_its_credentials(self, stage: Stage) -> None:
        await _vault(stage)
        await _vault(stage, "vlt_2")
        rows = stage.store.credentials
        for id, vault_id in (("vcrd_1", "vlt_1"), ("vcrd_2", "vlt_1"), ("vcrd_3", "vlt_2")):
            await rows.add(_new(id, vault_id))
        record = await rows.archive_vault(TENANT, "vlt_1")
        assert record.archived_at is not None
        for id in ("vcrd_1", "vcrd_2"):
            found = await rows.find(id)
            assert (found.sealed, found.archived_at) == (None, record.archived_at)
        assert (await rows.find("vcrd_3")).sealed == "sealed vcrd_3"
        assert await rows.archive_vault(TENANT, "vlt_1") == record
        with pytest.raises(NotFound):
            await rows.archive_vault("tenant_2", "vlt_2")

    async def test_a_vault_is_deleted_with_its_credentials(self, stage: Stage) -> None:
        await _vault(stage)
        rows = stage.store.credentials
        await rows.add(_new("vcrd_1"))
        with pytest.raises(NotFound):
            await rows.delete_vault("tenant_2", "vlt_1")
        await rows.delete_vault(TENANT, "vlt_1")
        with pytest.raises(NotFound):
            await rows.find("vcrd_1")
        with pytest.raises(NotFound):
            await stage.store.catalog.get("vault", TENANT, "vlt_1")

    async def test_what_is_added_while_a_vault_is_archived_is_archived_or_refused(
        self, stage: Stage
    ) -> None:
        await _vault(stage)
        rows = stage.store.credentials

        async def add(n: int) -> None:
            try:
                await rows.add(_new(f"vcrd_{n}"))
            except InvalidRequest:
                return

        async with anyio.create_task_group() as tasks:
            for n in range(6):
                tasks.start_soon(add, n)
                if n == 3:
                    tasks.start_soon(rows.archive_vault, TENANT, "vlt_1")
        assert await rows.active(TENANT, ["vlt_1"]) == []
