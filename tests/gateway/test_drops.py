"""A client whose connection breaks at random moments: everything it sends is there once, in order."""

from __future__ import annotations

import os
import random
from functools import partial

import anyio
import pytest
from tests.gateway.proxy import bad_network
from tests.gateway.talk import Api

from roost.client import Client, SdkMessage
from roost.client import chat as chat_module


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(chat_module, "_LONGEST_PAUSE", 0.1)


async def dropped(api: Api, messages: int, drops: int, seed: int) -> None:
    rng = random.Random(seed)
    session_id = await anyio.to_thread.run_sync(api.session)
    seen: list[int] = []
    async with (
        bad_network(api.server.url, rng, drops, (300, 8000)) as (url, proxy),
        Client(url, api.server.key).session(session_id, after=0) as chat,
        anyio.create_task_group() as tasks,
    ):

        async def watch() -> None:
            async for message in chat:
                seen.extend([message.seq] if isinstance(message, SdkMessage) else [])

        tasks.start_soon(watch)
        sent = 0
        while sent < messages or proxy.left > 0:
            async with anyio.create_task_group() as burst:  # several on their way at once
                for number in range(sent, sent + rng.randint(1, 5)):
                    burst.start_soon(partial(chat.send, f"number {number}", id=f"n-{number}"))
                    sent = number + 1
        assert chat.connections > drops / 4  # others broke before they had begun
        with anyio.fail_after(60):
            state = await anyio.to_thread.run_sync(api.events, session_id)
            while state[-1]["type"] != "session.status_idle" or len(seen) < state[-1]["seq"]:
                await anyio.sleep(0.1)
                state = await anyio.to_thread.run_sync(api.events, session_id)
        tasks.cancel_scope.cancel()
    stored = [e["content"][0]["text"] for e in state if e["type"] == "user.message"]
    assert stored == [f"number {number}" for number in range(sent)]
    assert seen == list(range(1, state[-1]["seq"] + 1))
    print(f"seed {seed}: {proxy.dropped} drops, {chat.connections} connections, {sent} messages")


async def test_messages_sent_over_a_bad_network_are_there_once_and_in_order(api: Api) -> None:
    await dropped(api, messages=50, drops=50, seed=random.randrange(2**32))


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_500_drops_lose_and_double_nothing(api: Api) -> None:
    seed = int(os.environ.get("ROOST_CHAOS_SEED", random.randrange(2**32)))
    await dropped(api, messages=500, drops=500, seed=seed)
