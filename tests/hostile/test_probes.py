"""A hostile program inside finds no way out; and where there is one, it does find it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.hostile.probed_sandbox import (
    HARMLESS,
    SECRET,
    hostile_sandbox,
    keep_record,
    naive,
    not_blocked,
    things_outside,
)

from roost.sandboxes.bubblewrap import tools
from roost.testing.sandbox_contract.kit import finish

# What a read-only view of the machine lets through, whatever its kernel was built with.
NAIVELY_OPEN = {
    "fs.agents_record",
    "fs.host_users",
    "fs.other_workspace",
    "fs.server_database",
    "fs.sys",
    "id.filters_missing",
    "ipc.abstract_socket",
    "ipc.shared_memory",
    "ipc.socket_file",
    "net.metadata_service",
    "net.names",
    "net.netlink",
    "net.server_on_loopback",
    "ns.new",
    "proc.environment",
    "proc.host_processes",
    "proc.kernel_secrets",
    "sys.dangerous_calls",
    "sys.personality",
    "tty.type_into_it",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder() -> Generator[Path, None, None]:
    """A folder everybody can get to: nothing but the sandbox is in the way."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("groups", [True, False], ids=["control groups", "no control groups"])
async def test_every_probe_is_blocked(
    folder: Path, groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_TEST_SECRET", SECRET)
    with things_outside(folder) as facts:
        async with hostile_sandbox(folder / "workspace", use_cgroups=groups) as sandbox:
            process = await sandbox.spawn(["python3", "-m", "roost.testing.probes.inside"])
            await process.send(json.dumps(facts).encode())
            await process.close_input()
            code, output, errors = await finish(process)
    assert code == 0, errors.decode()
    found = json.loads(output)
    assert len(found) >= 50
    assert not_blocked(found) == {}
    assert {name for name, got in found.items() if got["verdict"] == "info"} <= HARMLESS


def test_the_probes_find_what_is_open(folder: Path) -> None:
    """Else the test above would say nothing."""
    bwrap = tools.find(os.environ.get("PATH"), root=False).bwrap
    with things_outside(folder) as facts:
        workspace = folder / "workspace"
        keep_record(workspace)
        workspace.chmod(0o777)
        # Only loopback is tried where there is a network.
        loopback = {"metadata": "127.0.0.1", "metadata_port": facts["port"], "name": "localhost"}
        found = naive(bwrap, facts | loopback | {"cwd": str(workspace)})
    assert "broken" not in {got["verdict"] for got in found.values()}
    assert set(not_blocked(found)) >= NAIVELY_OPEN
    assert len(not_blocked(found)) >= 25
