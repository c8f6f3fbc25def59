"""Connections to a container engine: each carries one request, and none is used again."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import anyio
import pytest

from roost.egress.unix import UnixStream, accept
from roost.sandboxes.docker import wire
from roost.testing.cancelling import cancelled_at_each_step


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Engine:
    """Answers each request with the path it was asked for, and more than that if told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open = 0
        self.connections = 0
        self.surplus = b""

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Engine, None]:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(self.path))
            bound.listen(16)
            bound.setblocking(False)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, bound, tasks)
                yield self
                tasks.cancel_scope.cancel()

    async def _serve(self, bound: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            tasks.start_soon(self._talk, await accept(bound))

    async def _talk(self, stream: UnixStream) -> None:
        self.open += 1
        self.connections += 1
        try:
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                await self._answer(stream, head.split(b" ")[1])
                with suppress(anyio.EndOfStream):
                    while await stream.receive():
                        pass
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
        finally:
            self.open -= 1

    async def _answer(self, stream: UnixStream, target: bytes) -> None:
        if target.startswith(b"/exec"):
            upgrade = b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
            await stream.send(b"HTTP/1.1 101 UPGRADED\r\n" + upgrade + b"early " + target)
        else:
            body = b'"%s"' % target
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
            await stream.send(head + body + self.surplus)


@pytest.fixture
async def engine() -> AsyncGenerator[Engine, None]:
    with tempfile.TemporaryDirectory(prefix="engine-") as directory:
        async with Engine(Path(directory) / "engine.sock").listening() as engine:
            yield engine


async def gone(engine: Engine) -> None:
    with anyio.fail_after(60):
        while engine.open:  # noqa: ASYNC110 - the other side has no notifier
            await anyio.sleep(0.005)


async def test_each_request_has_a_connection_of_its_own(engine: Engine):
    engine.surplus = b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n"forged"'
    for number in range(3):
        assert await wire.ask(engine.path, "GET", f"/{number}") == f"/{number}"
    assert engine.connections == 3
    await gone(engine)


@pytest.mark.parametrize("kind", ["ask", "hijack"])
async def test_cancelled_anywhere_a_request_leaves_no_connection(engine: Engine, kind: str):
    numbers = count()

    async def work() -> None:
        if kind == "ask":
            await wire.ask(engine.path, "POST", f"/theirs/{next(numbers)}", {"a": "b"})
        else:
            stream = await wire.hijack(engine.path, f"/exec/{next(numbers)}/start")
            try:
                await stream.receive()
            finally:
                stream.close()

    async for step in cancelled_at_each_step(work):
        mine = f"/mine/{next(numbers)}"
        assert await wire.ask(engine.path, "GET", mine) == mine, f"step {step}"
        await gone(engine)


async def test_a_stream_has_only_what_was_said_on_it(engine: Engine):
    streams = [await wire.hijack(engine.path, f"/exec/{number}/start") for number in range(3)]
    for number, stream in enumerate(streams):
        assert await stream.receive() == f"early /exec/{number}/start".encode()
        stream.close()
    await gone(engine)
