"""A server is killed with SIGKILL while it seals secrets anew, and while it archives and deletes vaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.vault_worker import NEW, fill

from roost.core.vaults.reseal import NOT_SEALED, Reseal
from roost.core.vaults.secrets import opened_parts
from roost.domain.resource import about_token
from roost.errors import NotFound
from roost.ports.catalog import RecordQuery
from roost.stores.seal import MasterKeys
from roost.stores.sqlite import SqliteStore
from roost.testing.stage import TENANT

WORKER = Path(__file__).with_name("vault_worker.py")
VAULTS, EACH = 12, 4


def killed_after(path: Path, what: str, lines: int) -> list[str]:
    """What a worker said that was killed as soon as it had said so much; all, if it was done before."""
    command = [sys.executable, str(WORKER), str(path), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline().decode().strip() for _ in range(lines)]
        worker.kill()
        said += worker.stdout.read().decode().split("\n")
    return [line for line in said if line]


async def test_sealing_anew_goes_on_after_each_kill_and_every_secret_stays_readable(
    tmp_path: Path,
):
    path = tmp_path / "roost.db"
    async with SqliteStore.open(path) as store:
        await fill(store, VAULTS, EACH)
    left = []
    for lines in (2, 4, 7, 99):  # the last one comes to its end
        killed_after(path, "reseal", lines)
        async with SqliteStore.open(path) as store:
            await every_secret_opens(store, NEW)
            counts = await Reseal(store.catalog, store.credentials, store.webhooks, NEW).counts()
            assert sum(counts.values()) == VAULTS * (EACH + 1)
            left.append(sum(counts.values()) - counts.get(NEW.key or "", 0))
    assert left[0] > left[1] > left[2] > left[3] == 0
    only = MasterKeys([bytes(range(1, 33))])
    async with SqliteStore.open(path) as store:
        await every_secret_opens(store, only)
        assert (
            NOT_SEALED
            not in await Reseal(store.catalog, store.credentials, store.webhooks, only).counts()
        )
        again = await Reseal(store.catalog, store.credentials, store.webhooks, only).batch(None)
        assert (again.resealed, again.unreadable) == (0, [])


async def every_secret_opens(store: SqliteStore, keys: MasterKeys) -> None:
    for credential in await store.credentials.every(limit=1000):
        assert opened_parts(keys, credential).value == f"secret {credential.id}"
        assert credential.version == 1
    for record in await store.catalog.every("secret", limit=1000):
        body, n = record.body, int(record.id.removeprefix("secret_"))
        about = about_token(TENANT, body["name"], "sesrsc_1")
        opened = keys.open(body["sealed"], about) if "sealed" in body else body["token"]
        assert opened == f"token {n}"
        assert not {"sealed", "token"} <= body.keys()


@pytest.mark.parametrize("what", ["archive", "delete"])
async def test_a_vault_goes_with_its_credentials_or_not_at_all(tmp_path: Path, what: str):
    path = tmp_path / "roost.db"
    async with SqliteStore.open(path) as store:
        await fill(store, VAULTS, EACH)
    for lines in (2, 4, 7):
        said = killed_after(path, what, lines)
        async with SqliteStore.open(path) as store:
            query = RecordQuery(kind="vault", tenant=TENANT, limit=100)
            open_ = {vault.id for vault in await store.catalog.page(query)}
            assert not open_ & {line.split()[1] for line in said if line.startswith("done")}
            every = await store.credentials.every(limit=1000)
            assert {each.vault_id for each in every} == open_  # only those have secrets
            assert len(every) == EACH * len(open_)
            if what == "delete":
                with pytest.raises(NotFound):
                    await store.credentials.find(f"vcrd_{VAULTS - 1:03}_00")
