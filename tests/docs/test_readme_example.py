"""The README's example, run as it stands against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.reading import text

from roost.testing.live import LiveServer


@pytest.fixture
def server(tmp_path: Path) -> LiveServer:
    return LiveServer(tmp_path / ".roost")


def test_the_readmes_example_holds_a_conversation_each_time_it_is_run(
    server: LiveServer, tmp_path: Path
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", text("README.md"), re.S)
    address = "http://127.0.0.1:8700"
    assert address in example
    with server:
        for _ in range(2):
            ran = subprocess.run(
                [sys.executable, "-c", example.replace(address, server.url)],
                cwd=tmp_path,  # where the data directory of the example is
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert ran.returncode == 0, ran.stderr
            assert "agent.message" in ran.stdout and "Scripted model here" in ran.stdout
            assert ran.stdout.splitlines()[-1].startswith("session.status_idle")
