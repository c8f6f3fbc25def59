"""Sessions of the real agent that write to one workspace at once, while their server is killed."""

from __future__ import annotations

import copy
import os
import random
import time
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.journeys.chat import Chat, bash, printed, script
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

    def move_to(self, server: LiveServer) -> None:
        for chat in self.chats:
            chat.move_to(server)

    def wait_until_idle(self) -> None:
        for chat in self.chats:
            chat.wait_until_idle()

    def check(self) -> int:
        """No snapshot has half a file or a word of anybody's transcript; gives how many there are."""
        wait_until_settled(self.server.data / "roost.db", self.workspace)
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


@pytest.mark.chaos
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
