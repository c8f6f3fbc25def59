"""The administrator's key, over starts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roost.config import Settings
from roost.core.access.keys import Keyring
from roost.errors import StartupError, Unauthenticated
from roost.serve.first_start import ensure_administrator, prepare
from roost.stores.sqlite import SqliteStore


@asynccontextmanager
async def started(data: Path, **settings: Any) -> AsyncGenerator[tuple[Keyring, str], None]:
    """A start; gives the keyring, and the administrator's secret."""
    prepare(data)
    async with SqliteStore.open(data / "roost.db") as store:
        keyring = Keyring(store.keys)
        wanted = Settings.model_validate({"data": data, **settings})
        yield keyring, (await ensure_administrator(keyring, wanted)).read_text().strip()


async def test_the_key_stays_the_same_over_starts(tmp_path: Path):
    async with started(tmp_path) as (_, first):
        pass
    async with started(tmp_path) as (keyring, again):
        assert again == first
        assert (await keyring.recognise(again)).role == "admin"


async def test_a_revoked_administrator_s_key_is_replaced_at_the_next_start(tmp_path: Path):
    async with started(tmp_path) as (keyring, leaked):
        await keyring.create(tenant="default", name="another", role="admin")
        await keyring.revoke((await keyring.recognise(leaked)).id)
    async with started(tmp_path) as (keyring, fresh):
        assert (await keyring.recognise(fresh)).role == "admin"
        with pytest.raises(Unauthenticated):
            await keyring.recognise(leaked)


async def test_a_lost_administrator_s_key_is_replaced_when_its_file_is_removed(tmp_path: Path):
    async with started(tmp_path):
        pass
    (tmp_path / "keys/admin.key").unlink()
    async with started(tmp_path) as (keyring, fresh):
        me = await keyring.recognise(fresh)
        (lost,) = [key for key in await keyring.all() if key.id != me.id]
        await keyring.revoke(lost.id)


async def test_a_revoked_key_that_is_given_again_is_refused_in_words(tmp_path: Path):
    given = "a secret that somebody chose for this"
    async with started(tmp_path, api_key=given) as (keyring, _):
        await keyring.create(tenant="default", name="another", role="admin")
        await keyring.revoke((await keyring.recognise(given)).id)
    with pytest.raises(StartupError, match="revoked"):
        async with started(tmp_path, api_key=given):
            pass


async def test_what_is_shown_of_a_short_secret_does_not_tell_it(tmp_path: Path):
    async with started(tmp_path, api_key="hunter2") as (keyring, _):
        assert "hunter" not in (await keyring.recognise("hunter2")).hint
