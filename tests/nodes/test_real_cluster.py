"""Three servers with real agents on one PostgreSQL; servers are killed and stopped, the database too."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import anyio
import pytest
from tests.faults.cluster import Cluster, seeded
from tests.journeys.chat import serving
from tests.nodes.real_agents import (
    KEY,
    WITNESS,
    Load,
    RememberingModel,
    verify_logs,
    verify_memory,
    verify_writers,
)

from roost.stores.postgres import PostgresStore
from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

LEASE = 4
SESSIONS = int(os.environ.get("ROOST_TEST_SESSIONS", "60"))
MINUTES = float(os.environ.get("ROOST_TEST_MINUTES", "10"))
SMALL = {
    "ROOST_MAX_LIVE": "3",
    "ROOST_MAX_RUNNERS": "4",
    "ROOST_MAX_WAKES": "1",
    "ROOST_LEASE_SECONDS": str(LEASE),
}
"""Few agents at a time: sixty of them would need more memory than a small machine has."""


async def prepared(postgres: PostgresServer) -> str:
    url = await postgres.new()
    async with PostgresStore.open(url):
        pass
    for statement in WITNESS:
        await postgres.do(statement, url)
    return url


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("nodes")
def test_real_agents_on_three_nodes_answer_every_input_whatever_fails(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    chance, model = seeded(), RememberingModel()
    url = anyio.run(prepared, postgres)
    environ = {"ROOST_DATABASE_URL": url, "ROOST_BLOBS_URL": f"file://{tmp_path}/blobs", **SMALL}
    with serving(model) as model_url:
        environ |= {"ROOST_API_KEY": KEY, "ANTHROPIC_BASE_URL": model_url}
        servers = [LiveServer(tmp_path / name, **environ) for name in ("a", "b", "c")]
        try:
            for server in servers:
                server.start()
            load = Load(servers, SESSIONS, chance)
            cluster = Cluster(
                *(postgres, url, servers, chance, lambda: load.counts["acknowledged"]),
                stopped=LEASE + 2.5,
                enough=3,
                patience=240,
            )
            with load.running(clients=12):
                torment(cluster, chance)
            load.wait_until_all_rest(300)
            for session in range(SESSIONS):
                load.send(session)  # so that the model is shown the whole conversation once more
            load.wait_until_all_rest(300)
            for server in servers:
                assert server.stop(seconds=60) == 0
        finally:
            for server in servers:
                server.kill()
    report(cluster, load, servers)
    seen = anyio.run(verify_logs, url, load)
    writers = anyio.run(verify_writers, postgres, url)
    print(f"in the logs: {dict(seen)}; {dict(writers)}")
    verify_memory(load, model)


def torment(cluster: Cluster, chance: random.Random) -> None:
    """Each kind of thing as often as the others, until the time is over."""
    end = time.monotonic() + MINUTES * 60
    while time.monotonic() < end:
        happenings = list(cluster.happenings)
        chance.shuffle(happenings)
        for happening in happenings:
            cluster.do(happening)


def report(cluster: Cluster, load: Load, servers: list[LiveServer]) -> None:
    output = "".join(server.output for server in servers)
    refused = output.count("runner leaves")
    print(f"{dict(cluster.did)}; at the clients: {dict(load.counts)}; {refused} runners left")
    assert refused, "no stalled writer was ever refused"
