"""The TypeScript client, as a program in Node uses it, on the real server over a bad network."""

from __future__ import annotations

import json
import random
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.proxy import bad_network
from tests.gateway.talk import Api
from tests.parts import need

SCRIPTS = Path(sysconfig.get_path("scripts"))
TYPESCRIPT = Path("web/node_modules/.bin/tsc")
LOOKUP = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object"},
}
MESSAGES, DROPS = 30, 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def built() -> None:
    need("the app's packages", TYPESCRIPT.exists(), "make setup")
    subprocess.run([SCRIPTS / "node", TYPESCRIPT, "-p", "web/client"], check=True, timeout=120)


async def run(url: str, api: Api, parts: dict[str, str]) -> dict[str, Any]:
    ids = [parts["agent"], parts["environment_id"]]
    program = ["tests/gateway/typescript.mjs", url, api.server.key, *ids, str(MESSAGES)]
    with anyio.fail_after(90):
        done = await anyio.run_process([str(SCRIPTS / "node"), *program], check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_the_typescript_client_loses_and_doubles_nothing_over_a_bad_network(api: Api):
    await anyio.to_thread.run_sync(built)
    parts = api.parts(tools=[LOOKUP])
    seed = random.randrange(2**32)
    async with bad_network(api.server.url, random.Random(seed), DROPS, (300, 6000)) as (url, _):
        seen = await run(url, api, parts)
    stored = api.events(seen["id"])
    said = [event["content"][0]["text"] for event in stored if event["type"] == "user.message"]
    assert said[:MESSAGES] == [f"number {number}" for number in range(MESSAGES)], seed
    assert len(said) == MESSAGES + 1, seed
    assert seen["seqs"] == list(range(1, len(seen["seqs"]) + 1)), seed
    assert seen["twice"] == "already_answered"
    assert seen["connections"] > 2, seed
    assert {"ask_user_question", "sdk_message", "done", "agent_status"} <= set(seen["types"])
