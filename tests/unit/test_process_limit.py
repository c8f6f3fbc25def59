"""A command that waits for its limit of processes has it before it is let go."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from roost.errors import SandboxFailed
from roost.sandboxes.bubblewrap import sandbox as bubblewrap_sandbox
from roost.sandboxes.bubblewrap.launch import Launch
from roost.sandboxes.bubblewrap.sandbox import BubblewrapProcess, BubblewrapSandbox
from roost.sandboxes.processes import start

TOKEN = "roost-limited"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def go_on(launch: Launch) -> bytes:
    gate = launch.descriptors[-1]
    os.set_blocking(gate, False)
    try:
        return os.read(gate, 9)
    except BlockingIOError:
        return b""


async def test_it_is_limited_once_bwrap_has_told_of_it_and_then_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    launch = Launch(["sh"], [], TOKEN, waits=True)
    sandbox: Any = SimpleNamespace(token=TOKEN, discard=lambda root: None)
    process = BubblewrapProcess(await start(["sh", "-c", "read x", TOKEN]), launch, sandbox)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.limit, 32)
            await anyio.wait_all_tasks_blocked()
            assert go_on(launch) == b""
            os.write(launch.info, msgspec.json.encode({"child-pid": process.pid}))
        assert resource.prlimit(process.pid, resource.RLIMIT_NPROC) == (32, 32)
        assert go_on(launch) == b"\n"

        process._sandbox.token = "roost-another"
        await process.limit(16)
        assert resource.prlimit(process.pid, resource.RLIMIT_NPROC) == (32, 32)
        assert go_on(launch) == b"", "nothing goes on without its limit"

        def refused(*_: object) -> None:
            raise PermissionError("not allowed")

        monkeypatch.setattr(resource, "prlimit", refused)
        with pytest.raises(SandboxFailed, match="cannot be limited: not allowed"):
            await process.limit(32)
        assert go_on(launch) == b""
    finally:
        process.kill()
        await process.mind(process.all_gone)
        await process.close()
        launch.close()
    assert launch.waits
    launch.info = os.memfd_create("none")
    try:
        gone = BubblewrapProcess(process._child, launch, sandbox)
        gone._finished.set()
        await gone.limit(32)
    finally:
        os.close(gone._info)
        os.close(launch.info)


async def test_what_is_cancelled_waits_at_its_gate_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
):
    launch = Launch([], [], TOKEN, waits=True)
    launch.argv = ["sh", "-c", "read x; read y", TOKEN]
    assert launch._gate is not None
    gate, seen = launch._gate[1], []
    monkeypatch.setattr(
        bubblewrap_sandbox, "_end_abandoned", lambda token: seen.append((token, os.fstat(gate)))
    )
    launcher: Any = SimpleNamespace(
        token=TOKEN,
        group=None,
        processes=32,
        held=ExitStack(),
        begin=lambda: launch,
        finish=lambda *_: None,
    )
    async with anyio.create_task_group() as tasks:
        sandbox = BubblewrapSandbox(launcher, tasks)
        with anyio.move_on_after(0.1) as waiting:
            await sandbox.spawn(["true"])
        assert waiting.cancelled_caught
        await sandbox.stop()
    assert [token for token, _ in seen] == [TOKEN]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(gate)
    given = os.memfd_create("another's, with a number that is free again")
    try:
        launch.tell("0022", ["bwrap"], ["--clearenv"], ["true"])
        launch.go()
        assert os.fstat(given).st_size == 0
    finally:
        os.close(given)
