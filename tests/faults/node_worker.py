"""A node reduced to its store: clients that send, runners that work, beside other nodes like it.

`python node_worker.py URL NODE SESSIONS` says `ready`, and then each thing that was acknowledged, after
it was: `accepted SESSION SEQ ID KEY` and `written SESSION SEQ ID`; and `fenced SESSION` when a runner was
refused because another node has its session.
"""

from __future__ import annotations

import os
import random
import sys

import anyio

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease
from roost.errors import LeaseLost, Unavailable
from roost.ports.drafts import new_draft
from roost.ports.log import Receipt
from roost.stores.postgres import PostgresStore

TTL = 1.5


def tell(*lines: str) -> None:
    """In one write, which a pipe takes whole or not at all."""
    if lines:
        os.write(1, "".join(f"{line}\n" for line in lines).encode())


async def client(store: PostgresStore, session_id: str, node: str) -> None:
    n = 0
    while True:
        n += 1
        await send(store, session_id, f"{node}.{n}")
        await anyio.sleep(random.uniform(0, 0.1))


async def send(store: PostgresStore, session_id: str, key: str) -> None:
    """Until it is acknowledged."""
    draft = new_draft("user.message", content=[{"type": "text", "text": key}])
    while True:
        try:
            accepted = await store.log.accept(
                session_id, [draft], receipts=[Receipt(key, "same")], max_queued=10**6
            )
        except Unavailable:
            await anyio.sleep(0.05)
            continue
        [entry] = accepted.entries
        tell(f"accepted {session_id} {entry.seq} {entry.id} {key}")
        return


async def runner(store: PostgresStore, lease: Lease) -> None:
    try:
        while not await turn(store, lease):
            pass
    except LeaseLost:
        tell(f"fenced {lease.session_id}")
    except Unavailable:
        tell(f"away {lease.session_id}")


async def turn(store: PostgresStore, lease: Lease) -> bool:
    """Whether the session rests. What the agent says carries the generation it says it in."""
    seen = (await store.sessions.find(lease.session_id)).state.head
    waiting = await store.log.inputs(lease.session_id)
    if waiting:
        await work(store, lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
        for n in range(3):
            said = new_draft("agent.message", n=n, generation=lease.generation)
            await work(store, lease, Batch(drafts=[said]))
            await anyio.sleep(random.uniform(0, 0.05))
        return False
    ended = await store.log.finish(lease, seen, Batch(), {"type": "end_turn"})
    tell(*(f"written {lease.session_id} {entry.seq} {entry.id}" for entry in ended or ()))
    return ended is not None


async def work(store: PostgresStore, lease: Lease, batch: Batch) -> None:
    written = await store.log.append(lease, batch)
    tell(*(f"written {lease.session_id} {entry.seq} {entry.id}" for entry in written))


async def keep_alive(store: PostgresStore, node: str) -> None:
    while True:
        try:
            await store.log.renew(node, TTL)
        except Unavailable:
            tell("away -")
        await anyio.sleep(TTL / 3)


async def serve(url: str, node: str, sessions: int) -> None:
    async with PostgresStore.open(url) as store, anyio.create_task_group() as tasks:
        await store.log.renew(node, TTL)
        tasks.start_soon(keep_alive, store, node)
        tell("ready")
        for n in range(sessions):
            tasks.start_soon(client, store, f"sesn_{n}", node)
        while True:
            try:
                for lease in await store.log.claim(node, 5):
                    tasks.start_soon(runner, store, lease)
            except (LeaseLost, Unavailable):
                await anyio.sleep(0.05)
            await anyio.sleep(0.02)


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1], sys.argv[2], int(sys.argv[3]))
