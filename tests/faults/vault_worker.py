"""A server reduced to its vaults, until it is killed.

`python vault_worker.py DATABASE reseal` seals all secrets with the new key, and says `resealed N` after each
batch. `… archive` and `… delete` do that to one vault after the other, and say which after it was done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from roost.core.vaults import reseal
from roost.core.vaults.reseal import Reseal
from roost.domain.vault import StaticBearer, VaultCredential
from roost.ports.catalog import RecordQuery
from roost.stores.seal import MasterKeys
from roost.stores.sqlite import SqliteStore
from roost.testing.stage import TENANT

OLD, NEW = MasterKeys([bytes(range(32))]), MasterKeys([bytes(range(1, 33)), bytes(range(32))])


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def fill(store: SqliteStore, vaults: int, each: int) -> None:
    """Vaults with credentials, and tokens of repositories, sealed with the old key or not at all."""
    for n in range(vaults):
        body = {"display_name": str(n), "metadata": {}}
        await store.catalog.add("vault", TENANT, f"vlt_{n:03}", body, unique_name=False)
        for m in range(each):
            new = VaultCredential(
                id=f"vcrd_{n:03}_{m:02}",
                tenant=TENANT,
                vault_id=f"vlt_{n:03}",
                auth=StaticBearer(mcp_server_url=f"https://mcp.example/{m}"),
            )
            sealed = OLD.seal(f'{{"value":"secret {new.id}"}}', new.about)
            await store.credentials.add(
                VaultCredential(
                    id=new.id, tenant=TENANT, vault_id=new.vault_id, auth=new.auth, sealed=sealed
                )
            )
        about = f"token {TENANT} sesn_{n:03} sesrsc_1"
        token = {"name": f"sesn_{n:03}", "resource": "sesrsc_1"}
        kept = {"token": f"token {n}"} if n % 4 == 0 else {"sealed": OLD.seal(f"token {n}", about)}
        await store.catalog.add(
            "secret", TENANT, f"secret_{n:03}", {**token, **kept}, unique_name=False
        )


async def run(store: SqliteStore, what: str) -> None:
    tell("ready")
    if what == "reseal":
        work, after = Reseal(store.catalog, store.credentials, store.webhooks, NEW), None
        while True:
            step = await work.batch(after)
            tell(f"resealed {step.resealed}")
            if (after := step.after) is None:
                return
    end = store.credentials.archive_vault if what == "archive" else store.credentials.delete_vault
    query = RecordQuery(kind="vault", tenant=TENANT, limit=1000)
    for vault in await store.catalog.page(query):
        await end(TENANT, vault.id)
        tell(f"done {vault.id}")


async def main(path: Path, what: str) -> None:
    reseal.BATCH = 5  # type: ignore[misc]
    async with SqliteStore.open(path) as store:
        await run(store, what)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
