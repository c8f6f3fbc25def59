"""Three servers with real agents on one PostgreSQL; servers, database and network fail again and again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.faults.cluster import Cluster, seeded
from tests.journeys.chat import serving
from tests.nodes.hosts import Host, hosts
from tests.nodes.real_agents import (
    HEADERS,
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
PARTINGS = 8
SMALL = {
    "ROOST_API_KEY": KEY,
    "ROOST_MAX_LIVE": "3",
    "ROOST_MAX_RUNNERS": "4",
    "ROOST_MAX_STARTS": "1",
    "ROOST_LEASE_SECONDS": str(LEASE),
}
"""Few agents at a time: sixty of them would need more memory than a small machine has."""

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("nodes"),
]
Torment = Callable[[Cluster], None]


async def prepared(postgres: PostgresServer) -> str:
    url = await postgres.new()
    async with PostgresStore.open(url):
        pass
    for statement in WITNESS:
        await postgres.do(statement, url)
    return url


def hold(
    postgres: PostgresServer,
    url: str,
    servers: Sequence[LiveServer],
    model: RememberingModel,
    chance: random.Random,
    sessions: int,
    torment: Torment,
) -> None:
    """Clients at all servers while they are tormented; then everything that must hold."""
    try:
        for server in servers:
            server.start()
        load = Load(servers, sessions, chance)
        cluster = Cluster(
            *(postgres, url, servers, chance, lambda: load.counts["acknowledged"]),
            stopped=LEASE + 2.5,
            enough=3,
            patience=240,
        )
        with load.running(clients=12):
            torment(cluster)
        load.wait_until_all_rest(300)
        for session in range(sessions):
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


def report(cluster: Cluster, load: Load, servers: Sequence[LiveServer]) -> None:
    output = "".join(server.output for server in servers)
    refused = output.count("runner leaves")
    print(f"{dict(cluster.did)}; at the clients: {dict(load.counts)}; {refused} runners left")
    # A server that stalls once may have had nothing to write just then.
    assert refused or sum(cluster.did.values()) < 5, "no stalled writer was ever refused"


@pytest.mark.parametrize(
    ("sessions", "minutes"),
    [(6, 0.1), pytest.param(SESSIONS, MINUTES, marks=pytest.mark.chaos)],
    ids=["short", "long"],
)
def test_real_agents_on_three_nodes_answer_every_input_whatever_fails(
    postgres: PostgresServer, tmp_path: Path, sessions: int, minutes: float
) -> None:
    chance, model = seeded(), RememberingModel()
    url = anyio.run(prepared, postgres)
    with serving(model) as model_url:
        environ = {
            "ROOST_DATABASE_URL": url,
            "ROOST_BLOBS_URL": f"file://{tmp_path}/blobs",
            "ANTHROPIC_BASE_URL": model_url,
        }
        servers = [LiveServer(tmp_path / name, **SMALL, **environ) for name in ("a", "b", "c")]
        hold(postgres, url, servers, model, chance, sessions, partial(by_turns, chance, minutes))


def by_turns(chance: random.Random, minutes: float, cluster: Cluster) -> None:
    """Each kind of thing as often as the others, until the time is over."""
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        happenings = list(cluster.happenings)
        chance.shuffle(happenings)
        for happening in happenings:
            cluster.do(happening)


@pytest.mark.chaos
def test_a_node_parted_from_the_database_is_replaced_and_welcome_when_it_is_back(
    tmp_path: Path,
) -> None:
    chance, model = seeded(), RememberingModel()
    with hosts(3) as machines, serving(model, "0.0.0.0") as model_url:
        postgres = PostgresServer(addresses=[machine.gateway for machine in machines])
        try:
            postgres.make()
            postgres.start()
            url = anyio.run(prepared, postgres)
            servers = [
                server_on(machine, postgres.url_at(machine.gateway, url), model_url, tmp_path)
                for machine in machines
            ]
            torment = partial(part_each, chance, machines, servers)
            hold(postgres, url, servers, model, chance, min(SESSIONS, 12), torment)
        finally:
            postgres.stop()


def server_on(machine: Host, url: str, model_url: str, folder: Path) -> LiveServer:
    server = LiveServer(
        folder / machine.name,
        **SMALL,
        ROOST_HOST=machine.address,
        ROOST_DATABASE_URL=url,
        ROOST_BLOBS_URL=f"file://{folder}/blobs",
        ANTHROPIC_BASE_URL=f"http://{machine.gateway}:{model_url.rpartition(':')[2]}",
    )
    server.prefix = machine.prefix
    return server


def part_each(
    chance: random.Random,
    machines: Sequence[Host],
    servers: Sequence[LiveServer],
    cluster: Cluster,
) -> None:
    """By turns until its server says that the database is away, and just until its lease is over: then
    what it had already sent arrives late, and is refused.
    """
    for number in range(PARTINGS):
        cluster.progress()
        which = number // 2 % len(machines)
        machines[which].part()
        cluster.did["parted"] += 1
        try:
            if number % 2:
                time.sleep(LEASE + chance.uniform(1, 3))
            else:
                see_it_away(servers[which])
                cluster.progress()  # the others go on with its sessions
        finally:
            machines[which].heal()
        cluster.progress()


def see_it_away(server: LiveServer) -> None:
    asked = time.monotonic()
    answer = httpx2.get(f"{server.url}/v1/agents", headers=HEADERS, timeout=300)
    print(f"parted: {answer.status_code} after {time.monotonic() - asked:.1f} s")
    assert answer.status_code == 503, answer.text
