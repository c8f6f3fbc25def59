"""A server reduced to its store: clients that send, runners that work, until it is killed.

`python store_worker.py DATABASE RUN SESSIONS` says `ready`, and then each thing that was
acknowledged, after it was: `accepted SESSION SEQ ID KEY` and `written SESSION SEQ ID`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Spec
from roost.ports.drafts import new_draft
from roost.ports.log import Receipt
from roost.stores.sqlite import SqliteStore

SPEC = Spec(agent={"id": "agent_1", "version": 1, "name": "helper"}, environment_id="env_1")


def tell(*lines: str) -> None:
    """In one write, which a pipe takes whole or not at all."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


async def client(store: SqliteStore, session_id: str, run: str) -> None:
    n = 0
    while True:
        n += 1
        key = f"{run}.{n}"
        draft = new_draft("user.message", content=[{"type": "text", "text": key}])
        accepted = await store.log.accept(session_id, [draft], receipts=[Receipt(key, "same")])
        [entry] = accepted.entries
        tell(f"accepted {session_id} {entry.seq} {entry.id} {key}")
        await anyio.sleep(0.002 * (n % 5))


async def runner(store: SqliteStore, lease: Lease) -> None:
    while True:
        seen = (await store.sessions.find(lease.session_id)).state.head
        waiting = await store.log.inputs(lease.session_id)
        if waiting:
            await work(store, lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
            for n in range(3):
                await work(store, lease, Batch(drafts=[new_draft("agent.message", n=n)] * (n + 1)))
        elif (
            ended := await store.log.finish(lease, seen, Batch(), {"type": "end_turn"})
        ) is not None:
            tell(*(f"written {lease.session_id} {entry.seq} {entry.id}" for entry in ended))
            return


async def work(store: SqliteStore, lease: Lease, batch: Batch) -> None:
    written = await store.log.append(lease, batch)
    tell(*(f"written {lease.session_id} {entry.seq} {entry.id}" for entry in written))


async def serve(path: Path, run: str, sessions: int) -> None:
    async with SqliteStore.open(path) as store, anyio.create_task_group() as tasks:
        names = [f"sesn_{n}" for n in range(sessions)]
        for name in names:
            await store.sessions.create("tenant_1", name, SPEC, receipt=Receipt(name, "same"))
        tell("ready")
        for name in names:
            tasks.start_soon(client, store, name, run)
        while True:
            await store.log.renew(run, 30)
            for lease in await store.log.claim(run, 1000):
                tasks.start_soon(runner, store, lease)
            await anyio.sleep(0.003)


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
