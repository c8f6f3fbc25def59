"""Sessions of the real agent that write to one workspace at once, while their server is killed."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.engines import IMAGE
from tests.journeys.chat import Chat, bash, printed, said, script
from tests.journeys.test_workspaces import wait_until_settled
from tests.workspaces.s3_server import BUCKET, s3_server
from tests.workspaces.sharing_sessions import Company

from roost.blobs.folder import FolderBlobs
from roost.blobs.s3 import S3Blobs
from roost.core.snapshots.snapshots import Snapshots
from roost.ports.blobs import Blobs
from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

KEY = "roost_the_same_key_on_every_node_0123456789"


def settled_snapshots(server: LiveServer, company: Company) -> Snapshots:
    wait_until_settled(server.data, company.workspace)
    return Snapshots(FolderBlobs(server.data / "blobs"))


@pytest.fixture(
    params=[
        "bubblewrap",
        pytest.param("docker", marks=[pytest.mark.chaos, pytest.mark.xdist_group("docker")]),
    ]
)
def sandbox(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "bubblewrap":
        return {}
    socket = str(request.getfixturevalue("docker").socket)
    return {
        "ROOST_SANDBOX": "docker",
        "ROOST_DOCKER_SOCKET": socket,
        "ROOST_DOCKER_IMAGE": IMAGE,
    }


def refusals(chat: Chat) -> list[str]:
    errors = [event for event in chat.events() if event.type == "session.error"]
    return [event.error.message for event in errors if "was deleted" in event.error.message]


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_workspace_deleted_by_force_in_the_middle_of_a_turn_is_gone_for_all_its_sessions(
    tmp_path: Path, killed: bool
):
    """Also if the server dies then and there, with the agent still at work in the deleted files."""
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="0") as server:
        company = Company(server, [{}] * 2)
        place = company.place_on(server)
        working, resting = company.chats
        resting.turn(script(bash("echo theirs > /workspace/theirs"), {"text": "written"}))
        wait = "until [ -e /workspace/go ]; do sleep 0.1; done; echo late > /workspace/late"
        working.send(script(bash(f"touch /workspace/began; {wait}"), {"text": "done"}))
        wait_until((place / "began").exists)
        company.delete_from(server)
        if killed:
            server.kill()
            server.start()
            company.move_to(server)
        else:
            (place / "go").touch()
        wait_until(lambda: working.status in ("idle", "terminated"))
        server.stop()
        server.start()  # whoever removes files looks then, and every five minutes
        company.move_to(server)
        wait_until(lambda: not place.exists())
        wait_until(
            lambda: company.stored_by(server) <= {"head"}
        )  # which keeps a node out that was stopped
        for chat in (resting, working):
            before = said(chat.events())
            if (
                chat.status != "terminated"
            ):  # the files are gone for good, and so is what needs them
                chat.send("Are you there?")
            wait_until(partial(has_ended, chat))
            assert refusals(chat)
            assert said(chat.events()) == before
        assert not place.exists()


def has_ended(chat: Chat) -> bool:
    return chat.status == "terminated"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sessions_that_share_a_workspace_write_at_once_and_keep_their_homes_to_themselves(
    tmp_path: Path, sandbox: dict[str, str]
):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="3", **sandbox) as server:
        company = Company(server, [{}] * 3)
        company.write(30)
        company.wait_until_idle()
        company.write(30)
        server.kill()
        server.start()
        company.move_to(server)
        company.wait_until_idle()
        company.look_around()
        assert company.check(settled_snapshots(server, company), server) > 1


@pytest.mark.chaos
def test_sessions_on_the_host_share_a_workspace_with_those_in_sandboxes(tmp_path: Path):
    """Without walls nobody's home is hidden from them; theirs are from the sandboxes, and no file of a
    home is in the workspace.
    """
    levels = ["full", "sandboxed", "full"]
    environ = {"ROOST_SLEEP_AFTER": "1", "ROOST_TRUST_LEVELS": "sandboxed,full"}
    with LiveServer(tmp_path / "data", **environ) as server:
        company = Company(
            server,
            [{"trust_level": level} for level in levels],
            networking={"type": "unrestricted"},
            trust_levels=sorted(set(levels)),
        )
        company.write(30)
        company.wait_until_idle()
        company.write(30)
        server.kill()
        server.start()
        company.move_to(server)
        company.wait_until_idle()
        for number, chat in enumerate(company.chats):
            [transcript] = (chat.home / ".claude" / "projects").glob("*/*.jsonl")
            assert f"SECRET-{number}" in transcript.read_text()
        assert company.check(settled_snapshots(server, company), server) > 1
        # The sandbox may change what the host made, and the other way round; and all of it comes back.
        host, walled, _ = company.chats
        host.turn(script(bash("echo host >one"), {"text": "made"}))
        walled.turn(script(bash("echo walled >>one; echo walled >two"), {"text": "more"}))
        host.turn(script(bash("echo host >>two"), {"text": "and more"}))
        settled_snapshots(server, company)
        server.stop()
        shutil.rmtree(company.place_on(server))
        server.start()
        company.move_to(server)
        look = script(bash("pwd; cat one two; ls | wc -l"), {"text": "there"})
        shown = [printed(chat.turn(look))[-1].split() for chat in company.chats]
        assert [one[0] for one in shown] == [
            *(str(company.place_on(server)), "/workspace", str(company.place_on(server)))
        ]
        assert all(one[1:5] == ["host", "walled", "walled", "host"] for one in shown)
        assert len({one[5] for one in shown}) == 1


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, str], Blobs]]:
    """What servers are told of a store, and the store."""
    if request.param == "folder":
        yield {"ROOST_BLOBS_URL": f"file://{tmp_path}/blobs"}, FolderBlobs(tmp_path / "blobs")
        return
    with s3_server(tmp_path / "s3") as s3:
        url = {"ROOST_BLOBS_URL": f"s3://{BUCKET}/roost"}
        yield url | s3.environ, S3Blobs(BUCKET, "roost", **s3.options)


def with_files(company: Company, servers: list[LiveServer]) -> list[LiveServer]:
    """Those that have a copy. Whoever came too late to be the one has made an empty directory."""
    places = {server: company.place_on(server) for server in servers}
    return [one for one, place in places.items() if place.exists() and any(place.iterdir())]


def holder_of(company: Company, servers: list[LiveServer]) -> LiveServer:
    """The one that wrote last."""
    places = with_files(company, servers)
    return max(places, key=lambda server: company.place_on(server).stat().st_mtime)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("nodes")
def test_a_workspace_goes_with_its_sessions_from_a_server_that_dies_to_another(
    tmp_path: Path, postgres: PostgresServer, store: tuple[dict[str, str], Blobs]
):
    environ = {
        "ROOST_DATABASE_URL": anyio.run(postgres.new),
        "ROOST_API_KEY": KEY,
        "ROOST_LEASE_SECONDS": "6",
        "ROOST_SLEEP_AFTER": "5",
        **store[0],
    }
    with ExitStack() as stack:
        servers = [
            stack.enter_context(LiveServer(tmp_path / name, ROOST_NODE_NAME=name, **environ))
            for name in ("a", "b")
        ]
        company = Company(servers[0], [{}] * 4, key=KEY)
        for chat in company.chats[2:]:
            chat.move_to(servers[1])
        company.write(30)
        company.wait_until_idle()
        assert len(with_files(company, servers)) == 1
        before = {path.name for path in company.place_on(holder_of(company, servers)).iterdir()}
        for writings in (2, 4):  # there, and back; each time, it looks around as well
            company.write(30, pause=0.3)
            company.chats[0].wait_for("agent.tool_use", writings)
            dies = holder_of(company, servers)
            [lives] = [server for server in servers if server is not dies]
            dies.kill()
            company.move_to(lives)
            company.wait_until_idle()
            assert before <= {path.name for path in company.place_on(lives).iterdir()}
            company.look_around()
            dies.start()
        last = holder_of(company, servers)
        for server in servers:
            assert server.stop() == 0
        assert company.check(Snapshots(store[1]), last) > 2


@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("writers", ["allowed", "serialised"])
def test_ten_sessions_share_a_workspace_through_kills_at_random(tmp_path: Path, writers: str):
    seed = int(os.environ.get("SEED", time.time_ns() % 10_000))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    sleep_after = rng.choice(["1", "600"])
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER=sleep_after) as server:
        company = Company(server, [{}] * 10, writers=writers)
        for _ in range(4):
            company.write(rng.choice([20, 60]))
            for _ in range(rng.choice([0, 1, 2])):
                time.sleep(rng.uniform(0, 8))
                server.kill()
                server.start()
                company.move_to(server)
            company.wait_until_idle()
        company.look_around()
        server.stop()
        print(f"{company.check(settled_snapshots(server, company), server)} snapshots")
