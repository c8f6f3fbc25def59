"""Sessions of the real agent that write to one workspace at once, while their server is killed."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.journeys.chat import Chat, bash, printed, said, script
from tests.journeys.test_workspaces import wait_until_settled
from tests.workspaces.whole import WRITE, look_at_all, torn_in

from roost.blobs.folder import FolderBlobs
from roost.core.workspaces import Snapshots
from roost.testing.live import LiveServer


class Company:
    """Sessions in one workspace; each was told a secret, which is in its transcript."""

    def __init__(self, server: LiveServer, count: int, **settings: Any) -> None:
        self.server = server
        made = httpx2.post(
            f"{server.url}/roost/v1/workspaces",
            json={"name": "shared", "settings": settings},
            headers={"x-api-key": server.key},
        )
        self.workspace = made.json()["id"]
        self.chats = [Chat(server, workspace="shared")]
        for _ in range(count - 1):
            other = copy.copy(self.chats[0])
            other.session = other.begin(workspace=self.workspace)
            self.chats.append(other)

    def write(self, files: int) -> None:
        """Everybody begins a turn that writes."""
        for number, chat in enumerate(self.chats):
            run = f"python3 - s{number} {files} /workspace <<'END'\n{WRITE}\nEND"
            chat.send(f"SECRET-{number}. {script(bash(run), {'text': 'written'})}")

    def delete(self) -> None:
        """By force."""
        path = f"{self.server.url}/roost/v1/workspaces/{self.workspace}"
        headers = {"x-api-key": self.server.key}
        assert httpx2.delete(f"{path}?force=true", headers=headers).status_code == 200

    def stored(self) -> set[str]:
        """The names of what there is of the workspace in the blob store."""
        below = self.server.data / "blobs" / "workspaces" / self.workspace
        return {path.name for path in below.rglob("*") if path.is_file()}

    def move_to(self, server: LiveServer) -> None:
        for chat in self.chats:
            chat.move_to(server)

    def wait_until_idle(self) -> None:
        for chat in self.chats:
            chat.wait_until_idle()

    def check(self) -> int:
        """No snapshot has half a file or a word of anybody's transcript; gives how many there are."""
        wait_until_settled(self.server.data, self.workspace)
        snapshots = Snapshots(FolderBlobs(self.server.data / "blobs"))
        seen = anyio.run(look_at_all, snapshots, self.workspace)
        assert torn_in(seen) == []
        names = {name for files in seen.values() for name in files}
        assert not any(name.startswith(".claude") for name in names)
        assert not any(b"SECRET-" in data for files in seen.values() for data in files.values())
        newest = seen[max(seen)]
        place = self.server.data / "vault" / ".workspaces" / self.workspace
        assert newest == {name: (place / name).read_bytes() for name in newest}
        assert any(name.startswith("common-") for name in newest)
        return len(seen)

    def look_around(self) -> None:
        """From inside, a session finds its own secret and nobody else's; and all files."""
        look = (
            "grep -rhoa 'SECRET-[0-9][0-9]*' /home /workspace /tmp /mnt /vault 2>/dev/null | sort -u; "
            "ls -d /workspace/.claude 2>/dev/null; ls /workspace | wc -l; "
            "touch /workspace/common-0 && echo mine-to-write"
        )
        for number, chat in enumerate(self.chats):
            shown = printed(chat.turn(script(bash(look), {"text": "looked"})))[-1].split()
            assert shown[0] == f"SECRET-{number}"
            assert shown[1].isdecimal() and int(shown[1]) >= len(self.chats)
            assert shown[2:] == ["mine-to-write"]


def refusals(chat: Chat) -> list[str]:
    errors = [event for event in chat.events() if event.type == "session.error"]
    return [event.error.message for event in errors if "was deleted" in event.error.message]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_a_workspace_deleted_by_force_in_the_middle_of_a_turn_is_gone_for_all_its_sessions(
    tmp_path: Path, killed: bool
):
    """Also if the server dies then and there, with the agent still at work in the deleted files."""
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="0") as server:
        company = Company(server, 2)
        place = server.data / "vault" / ".workspaces" / company.workspace
        working, resting = company.chats
        resting.turn(script(bash("echo theirs > /workspace/theirs"), {"text": "written"}))
        wait = "until [ -e /workspace/go ]; do sleep 0.1; done; echo late > /workspace/late"
        working.send(script(bash(f"touch /workspace/began; {wait}"), {"text": "done"}))
        wait_until((place / "began").exists)
        company.delete()
        if killed:
            server.kill()
            server.start()
            company.move_to(server)
        else:
            (place / "go").touch()
        company.wait_until_idle()
        server.stop()
        server.start()  # whoever removes files looks then, and every five minutes
        company.move_to(server)
        wait_until(lambda: not place.exists())
        wait_until(lambda: company.stored() <= {"head"})  # which keeps a node out that was stopped
        for chat, told in (
            (resting, 1),
            (working, 2),
        ):  # the latter also that its turn ends in nothing
            assert len(refusals(chat)) == told
            before = said(chat.events())
            chat.turn("Are you there?")
            assert len(refusals(chat)) == told + 1
            assert said(chat.events()) == before
        assert not place.exists()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_sessions_that_share_a_workspace_write_at_once_and_keep_their_homes_to_themselves(
    tmp_path: Path,
):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="3") as server:
        company = Company(server, 3)
        company.write(30)
        company.wait_until_idle()
        company.write(30)
        server.kill()
        server.start()
        company.move_to(server)
        company.wait_until_idle()
        company.look_around()
        assert company.check() > 1


@pytest.mark.chaos
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("writers", ["allowed", "serialised"])
def test_ten_sessions_share_a_workspace_through_kills_at_random(tmp_path: Path, writers: str):
    seed = int(os.environ.get("SEED", time.time_ns() % 10_000))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    sleep_after = rng.choice(["1", "600"])
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER=sleep_after) as server:
        company = Company(server, 10, writers=writers)
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
        print(f"{company.check()} snapshots")
