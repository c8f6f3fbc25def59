"""Another master key, while the server runs: what is sealed anew, counted, and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.api.api_server import MASTER_KEY, TENANT, ApiServer, api_server, error_of
from tests.api.test_vaults import BEARER, added, vault

from roost.core.vaults import reseal
from roost.core.vaults.reseal import Reseal
from roost.core.vaults.secrets import opened_parts
from roost.domain.resource import about_token
from roost.errors import CannotSeal
from roost.stores.seal import MasterKeys, fingerprint

OLD, NEW = bytes(range(2, 34)), MASTER_KEY
AT = "/roost/v1/master_key"


async def sealed_before(roost: ApiServer) -> tuple[str, str]:
    """A credential and a repository's token from when the old key was the first."""
    made = await added(roost, await vault(roost), BEARER)
    old = MasterKeys([OLD])
    row = await roost.store.credentials.find(made["id"])
    sealed = old.seal('{"value":"tok-1"}', row.about)
    await roost.store.credentials.change(row, lambda c, now: replace(c, sealed=sealed))
    body = {"name": "sesn_1", "resource": "sesrsc_1"}
    body["sealed"] = old.seal("ghp", about_token(TENANT, "sesn_1", "sesrsc_1"))
    await roost.store.catalog.add("secret", TENANT, "secret_1", body, unique_name=False)
    return made["id"], "secret_1"


async def test_secrets_of_a_key_that_is_missing_are_named_and_left_alone(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        assert await roost.get(AT) == {
            "type": "master_key",
            "key": fingerprint(NEW),
            "sealed_with": {},
        }
        rows = await sealed_before(roost)
        await added(roost, await vault(roost), BEARER)
        counts = {fingerprint(OLD): 2, fingerprint(NEW): 1}
        assert (await roost.get(AT))["sealed_with"] == counts
        step = await roost.post(f"{AT}/reseal", {})
        assert (step["resealed"], step["unreadable"]) == (0, [rows[0]])
        step = await roost.post(f"{AT}/reseal", {"after": step["after"]})
        assert (step["unreadable"], step["after"]) == ([rows[1]], None)
        assert (await roost.get(AT))["sealed_with"] == counts
        error_of(await roost.client.post(f"{AT}/reseal", json={"after": "x"}), 400)
        async with await roost.user() as user:
            error_of(await user.get(AT), 403)
            error_of(await user.post(f"{AT}/reseal", json={}), 403)


async def test_secrets_are_sealed_anew_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reseal, "BATCH", 1)
    both = MasterKeys([NEW, OLD])
    async with api_server(tmp_path) as roost:
        credential, secret = await sealed_before(roost)
        work, after, steps = (
            Reseal(roost.store.catalog, roost.store.credentials, roost.store.webhooks, both),
            None,
            [],
        )
        before = await roost.store.credentials.find(credential)
        while True:
            step = await work.batch(after)
            steps.append(step.resealed)
            if (after := step.after) is None:
                break
        assert sum(steps) == 2
        assert await work.counts() == {fingerprint(NEW): 2}
        now, only = await roost.store.credentials.find(credential), MasterKeys([NEW])
        assert opened_parts(only, now).value == "tok-1"
        assert replace(now, sealed=None) == replace(before, sealed=None)
        record = await roost.store.catalog.get("secret", TENANT, secret)
        about = about_token(TENANT, "sesn_1", "sesrsc_1")
        assert (record.version, only.open(record.body["sealed"], about)) == (1, "ghp")
        assert (
            len(await roost.store.catalog.versions("secret", TENANT, secret, before=None, limit=9))
            == 1
        )


async def test_what_is_replaced_or_gone_meanwhile_stays_as_it_is_then(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        credential, secret = await sealed_before(roost)
        rows, catalog = roost.store.credentials, roost.store.catalog
        read, token = await rows.find(credential), await catalog.get("secret", TENANT, secret)
        await rows.change(read, lambda c, now: replace(c, sealed="newer"))
        assert not await rows.reseal(read, "late")
        assert (await rows.find(credential)).sealed == "newer"
        await rows.archive(read)
        assert not await rows.reseal(replace(read, sealed="newer"), "late")
        assert (await rows.find(credential)).sealed is None
        await catalog.change("secret", TENANT, secret, lambda r: {**r.body, "sealed": "newer"})
        assert not await catalog.rewrite(token, {"name": "late"})
        await catalog.delete("secret", TENANT, secret)
        assert not await catalog.rewrite(token, {"name": "late"})


async def test_without_a_key_that_seals_nothing_is_begun(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        keys = MasterKeys([OLD], seals=False)
        with pytest.raises(CannotSeal):
            await Reseal(
                roost.store.catalog, roost.store.credentials, roost.store.webhooks, keys
            ).batch(None)
