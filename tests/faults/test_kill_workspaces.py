"""Servers killed at random moments while files are written, stored and restored."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from tests.journeys.chat import Chat, bash, printed, script
from tests.journeys.test_workspaces import settled, wait_until_settled

from roost.testing.live import LiveServer

ROUNDS = 12


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sleep_after", ["0", "600"], ids=["sleeps at once", "stays warm"])
def test_no_line_is_lost_however_the_server_and_the_directory_go(tmp_path: Path, sleep_after: str):
    """Each turn adds a line. A directory is lost only when it is known to be stored."""
    seed = int(os.environ.get("SEED", time.time_ns() % 10_000))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER=sleep_after) as server:
        chat = Chat(server)
        for number in range(ROUNDS):
            add = f"echo {number} >> lines.txt; dd if=/dev/urandom of=r{number} bs=1M count=2"
            chat.turn(script(bash(f"{add} status=none"), {"text": "added"}))
            time.sleep(rng.choice([0, rng.uniform(0, 4)]))
            server.kill()
            if rng.random() < 0.5:
                server.start()
                wait_until_settled(server.data, chat.session.id)
                server.kill()
            if settled(server.data, chat.session.id) and rng.random() < 0.7:
                shutil.rmtree(chat.home)
                if rng.random() < 0.5:  # and killed once more, perhaps while it restores
                    server.start()
                    chat.move_to(server)
                    chat.send("hello?")
                    time.sleep(rng.uniform(0, 1))
                    server.kill()
            server.start()
            chat.move_to(server)
            chat.wait_until_idle()
        shown = printed(chat.turn(script(bash("cat lines.txt; ls r* | wc -l"), {"text": "all"})))
        expected = [str(number) for number in range(ROUNDS)] + [str(ROUNDS)]
        assert shown[-1].split() == expected
