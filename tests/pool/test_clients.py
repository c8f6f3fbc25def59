"""Clients of Azure's dynamic sessions from PyPI, unchanged, with a pool of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parts import need
from tests.pool.pool_server import make_pool

from roost.testing.live import LiveServer

HERE = Path(__file__).parent
PYTHON = HERE.parent.parent / ".tools/pool-clients/bin/python"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, databases: None) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("clients") / "data") as server:
        make_pool(server, "p")
        yield server


@pytest.fixture(scope="module")
def seen(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the clients saw. They are imported once for all tests: that takes longer than what they do."""
    need("clients of pools", PYTHON.exists(), "scripts/install-test-parts pool-clients")
    endpoint = f"{server.url}/subscriptions/s/resourceGroups/g/sessionPools/p"
    script = [str(PYTHON), "-W", "ignore", str(HERE / "clients.py"), endpoint, server.key]
    folder = tmp_path_factory.mktemp("here")
    done = subprocess.run([*script, str(folder)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_langchain_runs_code_and_keeps_files(seen: dict[str, Any]) -> None:
    told = seen["langchain"]
    assert told["invoked"] == {"result": 42, "stdout": "", "stderr": ""}
    assert (told["kept"]["result"], told["kept"]["stdout"]) == (21, "out\n")
    assert told["failed"]["status"] == "Failure"
    assert "ZeroDivisionError" in told["failed"]["stderr"]
    assert told["picture"] == {"type": "image", "format": "png"}
    assert told["uploaded"] == ["sub/a b.txt", 4]
    assert (told["read"], told["downloaded"]) == ("deep", "deep")
    assert told["listed"] == ["/mnt/data/sub/a b.txt"]
    assert told["absent"] == [404, "NotFound"]
    assert told["shell"] == {"stdout": "deep", "stderr": "err\n", "exitCode": 3}
    assert told["after"] is False  # its session was deleted, and another one made
    assert told["wrong_key"] == [401, "Unauthorized"]


def test_autogen_runs_code_and_keeps_files(seen: dict[str, Any]) -> None:
    told = seen["autogen"]
    assert told["ran"] == [0, "out\n21"]
    assert told["kept"] == [0, "20"]
    assert told["failed"][0] == 1
    assert "ZeroDivisionError" in told["failed"][1]
    assert told["lacks"][0] == 1
    assert "Python packages unavailable in environment: {'no-such-package'}" in told["lacks"][1]
    assert told["listed"] == ["given.txt"]
    assert told["read"] == [0, "from here"]
    assert told["downloaded"] == "from there"
    assert told["restarted"] == [0, "False"]


def test_llama_index_runs_code_and_keeps_files(seen: dict[str, Any]) -> None:
    told = seen["llama_index"]
    assert told["kept"] == 21
    assert told["failed"]["status"] == "Failure"
    assert "ZeroDivisionError" in told["failed"]["stderr"]
    assert told["picture"] == {"type": "image", "format": "png", "saved_to_local_path": True}
    assert told["saved"] == ["png"]
    assert told["uploaded"] == ["given.txt", 9, "/mnt/data/given.txt"]
    assert told["listed"] == ["/mnt/data/given.txt"]
    assert told["downloaded"] == "from here"
    assert told["absent"] == [404, "NotFound"]
