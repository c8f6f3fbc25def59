"""Ports of a command's own loopback that lead to the host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.hostile.probed_sandbox import PROBES, hostile_plan, provider
from tests.parts import need

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import Endpoint, Plan, Take, UnixAddress
from roost.sandboxes.bubblewrap import ports
from roost.sandboxes.bubblewrap.sandbox import BubblewrapSandbox
from roost.testing.sandbox_contract.kit import run

PORT = 3128
ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(b"from inside")
    s.shutdown(socket.SHUT_WR)
    print(s.makefile().read(), end="")
"""
OPEN = "import os; print(*os.listdir('/proc/self/fd'))"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
def _root() -> None:
    need("a server that may enter namespaces", ports.may_enter(), "running as root")


def answering(word: bytes) -> Take:
    async def take(connection: socket.socket) -> None:
        with connection:
            assert await anyio.to_thread.run_sync(connection.makefile("rb").read) == b"from inside"
            connection.sendall(word)

    return take


def plan(home: Path, session: str = "sesn_ports", **takes: Take) -> Plan:
    made = hostile_plan(home, session=session)
    address = UnixAddress(PROBES)  # some file: nobody connects to it
    endpoints = [
        Endpoint(address=address, socket=f"/run/{number}.sock", port=PORT + number, take=take)
        for number, take in enumerate(takes.values())
    ]
    return replace(made, endpoints=endpoints)


def in_use() -> bool:
    """Whether somebody listens on the port in the network of the tests."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


async def test_a_port_is_open_when_its_command_begins_and_leads_to_its_own_session(
    tmp_path: Path,
) -> None:
    one = plan(tmp_path / "one", one=answering(b"one"), two=answering(b"two"))
    other = plan(tmp_path / "other", "sesn_other", other=answering(b"other"))
    async with provider().open(one) as sandbox, provider().open(other) as elsewhere:
        assert sandbox.has_ports
        for _ in range(2):  # each command has a network of its own
            assert (await run(sandbox, "python3", "-c", ASK, str(PORT))).output == b"one"
            assert (await run(sandbox, "python3", "-c", ASK, str(PORT + 1))).output == b"two"
        assert (await run(elsewhere, "python3", "-c", ASK, str(PORT))).output == b"other"
        assert (await run(elsewhere, "python3", "-c", ASK, str(PORT + 1))).code != 0
        assert not in_use()


async def test_a_port_is_closed_with_its_command_and_nothing_of_it_is_open_inside(
    tmp_path: Path,
) -> None:
    async with provider().open(plan(tmp_path / "home", one=answering(b"one"))) as sandbox:
        await run(sandbox, "true")
        before = os.listdir("/proc/self/fd")  # noqa: PTH208 - it holds no files
        for _ in range(3):
            seen = await run(sandbox, "python3", "-c", OPEN)
            assert seen.output.split() == [b"0", b"1", b"2", b"3"]  # 3 is the listing itself
        await run(sandbox, "true")
        assert len(os.listdir("/proc/self/fd")) <= len(before) + 3  # noqa: PTH208


async def test_a_connection_that_is_taken_late_does_not_outlive_the_sandbox(tmp_path: Path) -> None:
    held: list[socket.socket] = []
    came = anyio.Event()

    async def hold(connection: socket.socket) -> None:
        held.append(connection)
        came.set()
        await anyio.sleep_forever()  # there is no room for another one

    async with provider().open(plan(tmp_path / "home", one=hold)) as sandbox:
        process = await sandbox.spawn(["python3", "-c", ASK, str(PORT)])
        with anyio.fail_after(60):
            await came.wait()
        process.signal(9)
        await process.wait()
    with held[0] as connection:
        connection.settimeout(60)
        assert connection.makefile("rb").read() in (b"", b"from inside")  # and then its end


async def test_a_process_that_is_not_the_sandboxs_is_not_listened_for(tmp_path: Path) -> None:
    """Its pid may be another's by then, and its network the host's own."""
    with pytest.raises(ProcessLookupError):
        ports.listen(os.getpid(), [PORT], lambda: True)
    async with provider().open(plan(tmp_path / "home", one=answering(b"one"))) as sandbox:
        assert isinstance(sandbox, BubblewrapSandbox)
        process = await sandbox.spawn(["sleep", "60"])
        process._first = os.getpid()
        with pytest.raises(SandboxFailed, match="gone"):
            process.listen([PORT])
        process._first = None
    assert not in_use()
