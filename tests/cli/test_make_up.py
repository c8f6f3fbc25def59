"""`make up` and `make down`, without make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return Make(tmp_path / "data")


class Make:
    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, target: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, ROOT / "scripts" / "server.py", target],
            env=os.environ | {"ROOST_DATA": str(self.data), "ROOST_PORT": "0"} | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )


def test_up_starts_a_server_that_stays_talks_to_it_and_down_stops_it(make: Make) -> None:
    first = make("up")
    assert first.returncode == 0, first.stderr
    assert "> Hello\nScripted model here." in first.stdout
    assert f"the API key   {make.data}/keys/admin.key" in first.stdout
    pid = int((make.data / "server.pid").read_text())
    assert os.getsid(pid) == pid, "it is in a session of its own, so it outlives the terminal"

    again = make("up")
    assert again.returncode == 0
    assert (
        "already runs at http://127.0.0.1:" in again.stdout and f"(process {pid})" in again.stdout
    )

    down = make("down")
    assert (down.returncode, down.stdout.splitlines()[-1]) == (0, "stopped; its data stays")
    assert make("down").stdout == "No server of `make up` is running.\n"


def test_down_is_not_fooled_by_a_process_that_has_ended_and_was_not_collected(make: Make) -> None:
    make.data.mkdir()
    program = "import time; print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, "serve", "x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        ended.stdout.readline()
        (make.data / "server.pid").write_text(str(ended.pid))
        assert make("down", ROOST_STOP_SECONDS="1").stdout.endswith("stopped; its data stays\n")


def test_a_server_that_cannot_start_shows_why(make: Make) -> None:
    ran = make("up", ROOST_DATABASE_URL="mysql://x")
    assert ran.returncode == 1
    assert "mysql://" in ran.stderr and "sqlite:///PATH" in ran.stderr


def test_no_message_is_spent_on_a_real_model(make: Make) -> None:
    ran = make("up", ANTHROPIC_API_KEY="sk-ant-none", ANTHROPIC_BASE_URL="http://127.0.0.1:9")
    try:
        assert ran.returncode == 0, ran.stderr
        assert "no message was sent" in ran.stdout
        assert "scripted" not in ran.stdout
    finally:
        make("down")
