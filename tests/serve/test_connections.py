"""What a connection may cost: silent ones, endless heads, unread answers, too many of them."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from roost.api.framework.call import WHOLE_BODY
from roost.serve import connections
from roost.serve.connections import (
    Bounds,
    Connection,
    Connections,
    HttpConnection,
    raise_file_limit,
)
from roost.serve.http import listening

ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = 16 * 1024 * 1024
SOON = Bounds(head_seconds=0.3, unread_seconds=0.5)


async def _hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.client.host if request.client else ''}")


async def _late(_: Request) -> Response:
    await anyio.sleep(1)
    return PlainTextResponse("late")


async def _large(_: Request) -> Response:
    return Response(b"x" * LARGE)


APP = Starlette(
    routes=[
        Route("/", _hello),
        Route("/healthz", _hello),
        Route("/late", _late),
        Route("/large", _large),
        Route("/post", _hello, methods=["POST"]),
    ]
)


async def _connected(url: str) -> anyio.abc.SocketStream:
    place = urlsplit(url)
    return await anyio.connect_tcp(str(place.hostname), place.port or 0)


@asynccontextmanager
async def _several(url: str, count: int) -> AsyncGenerator[list[anyio.abc.SocketStream], None]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await _connected(url)) for _ in range(count)]


async def _rest(line: anyio.abc.SocketStream) -> bytes:
    """Everything until the server closes the connection."""
    got = b""
    with anyio.fail_after(60):
        while True:
            try:
                got += await line.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return got


def _error(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["details"]["error_code"]


@pytest.mark.parametrize(
    "said",
    [b"", b"GET", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n" * 3, ASK + b"GET / HTTP/1.1\r\nhos"],
)
async def test_a_connection_that_does_not_finish_its_head_is_closed(said: bytes) -> None:
    async with listening(APP, "127.0.0.1", 0, bounds=SOON) as url, await _connected(url) as line:
        await line.send(said or b"\r\n")
        assert (b"hello" in await _rest(line)) == said.startswith(ASK)


async def test_half_a_head_ahead_does_not_cut_the_answer_before_it() -> None:
    async with listening(APP, "127.0.0.1", 0, bounds=SOON) as url, await _connected(url) as line:
        await line.send(b"GET /late HTTP/1.1\r\nhost: x\r\n\r\nGET / HT")
        assert (await _rest(line)).endswith(b"late")


@pytest.mark.parametrize(
    "said",
    [
        b"GET /" + b"a" * 200_000,
        b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n",
    ],
    ids=["line", "header", "headers"],
)
async def test_a_head_without_end_is_refused(said: bytes) -> None:
    async with listening(APP, "127.0.0.1", 0) as url, await _connected(url) as line:
        await line.send(said)
        assert _error(await _rest(line)) == (431, "head_too_large")


async def test_what_is_no_request_is_refused_in_the_words_of_the_api() -> None:
    async with listening(APP, "127.0.0.1", 0) as url, await _connected(url) as line:
        await line.send(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert _error(await _rest(line)) == (400, "invalid_request")


async def test_a_client_that_sends_too_many_requests_ahead_is_cut_off() -> None:
    async with listening(APP, "127.0.0.1", 0) as url, await _connected(url) as line:
        await line.send(ASK * 2000)
        assert (await _rest(line)).count(b"hello") < 100


async def test_some_requests_ahead_are_answered_in_order() -> None:
    async with listening(APP, "127.0.0.1", 0) as url, await _connected(url) as line:
        await line.send(ASK * 10)
        assert (await _rest(line)).count(b"hello") == 10


async def test_a_body_that_nobody_reads_does_not_hold_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LEFTOVER_SECONDS", 0.3)
    async with listening(APP, "127.0.0.1", 0) as url, await _connected(url) as line:
        await line.send(b"POST /post HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nabc")
        assert b"hello" in await _rest(line)


async def test_an_answer_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, drop = anyio.Event(), Connections.drop

    def dropped(self: Connections, connection: Connection) -> None:
        drop(self, connection)
        ended.set()

    monkeypatch.setattr(Connections, "drop", dropped)
    async with listening(APP, "127.0.0.1", 0, bounds=SOON) as url, await _connected(url) as line:
        await line.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        with anyio.fail_after(60):
            await ended.wait()
        assert len(await _rest(line)) < LARGE


async def test_an_answer_that_is_read_slowly_is_read_whole() -> None:
    got, bounds = 0, Bounds(unread_seconds=1.5)
    async with listening(APP, "127.0.0.1", 0, bounds=bounds) as url, await _connected(url) as line:
        await line.send(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        for _ in range(20):
            got += len(await line.receive(1024 * 1024))
            await anyio.sleep(0.1)
        assert got + len(await _rest(line)) > LARGE


async def test_unread_answers_have_a_bound_together() -> None:
    bounds = Bounds(unread_bytes=2 * LARGE)
    async with listening(APP, "127.0.0.1", 0, bounds=bounds) as url, _several(url, 8) as lines:
        for line in lines:
            await line.send(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await _answered(url)
        whole = [len(await _rest(line)) > LARGE for line in lines]
    assert 1 <= sum(whole) < 8


async def _answered(url: str, said: bytes = HEALTH) -> bytes:
    async with await _connected(url) as line:
        await line.send(said.replace(b"host: x", b"host: x\r\nconnection: close"))
        return await _rest(line)


async def test_silent_connections_make_room_for_others() -> None:
    bounds = Bounds(connections=10, per_address=10)
    async with listening(APP, "127.0.0.1", 0, bounds=bounds) as url, _several(url, 40) as lines:
        for _ in range(20):
            assert b"hello" in await _answered(url)
        ended = 0
        for line in lines:
            with anyio.move_on_after(0.1):
                ended += await _rest(line) == b""
        assert ended >= 30


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        (Bounds(connections=5, per_address=50), (503, "unavailable")),
        (Bounds(connections=50, per_address=5), (429, "too_many_connections")),
    ],
)
async def test_when_all_are_busy_health_is_answered_and_the_rest_refused(
    bounds: Bounds, refused: tuple[int, str]
) -> None:
    busy = _Busy()
    async with listening(busy, "127.0.0.1", 0, bounds=bounds) as url, _several(url, 5) as lines:
        for line in lines:
            await line.send(b"GET /busy HTTP/1.1\r\nhost: x\r\n\r\n")
        while busy.count < 5:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert b"hello" in await _answered(url)
        assert _error(await _answered(url, ASK)) == refused
        busy.go.set()
        for line in lines:
            assert b"done" in await line.receive()
        assert b"hello" in await _answered(url, ASK)


class _Busy:
    def __init__(self) -> None:
        self.count = 0
        self.go = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = APP
        if scope["path"] == "/busy":
            self.count += 1
            await self.go.wait()
            answer = PlainTextResponse("done")
        await answer(scope, receive, send)


@pytest.mark.parametrize(
    ("trusted", "said", "seen"),
    [
        ((), "192.0.2.7", "127.0.0.1"),
        (("10.0.0.0/8",), "192.0.2.7", "127.0.0.1"),
        (("127.0.0.1",), "192.0.2.7", "192.0.2.7"),
        (("127.0.0.1",), "203.0.113.9, 192.0.2.7", "192.0.2.7"),
        (("127.0.0.0/8", "10.0.0.0/8"), "192.0.2.7, 10.1.2.3", "192.0.2.7"),
    ],
)
async def test_an_address_is_believed_of_trusted_proxies_only(
    trusted: tuple[str, ...], said: str, seen: str
) -> None:
    bounds = Bounds(trusted=tuple(map(ip_network, trusted)))
    async with listening(APP, "127.0.0.1", 0, bounds=bounds) as url:
        asked = ASK.replace(b"host: x", b"host: x\r\nx-forwarded-for: " + said.encode())
        assert (await _answered(url, asked)).endswith(f"hello {seen}".encode())


async def test_a_proxy_has_as_many_connections_as_all_its_clients() -> None:
    bounds = Bounds(connections=50, per_address=2, trusted=(ip_network("127.0.0.1"),))
    async with listening(APP, "127.0.0.1", 0, bounds=bounds) as url, _several(url, 20) as lines:
        for line in lines:
            await line.send(ASK)
            assert b"hello" in await line.receive()


def test_a_server_may_have_as_many_files_as_the_machine_allows() -> None:
    program = (
        "import resource; from roost.serve.connections import raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)); print(raise_file_limit(),\n"
        "resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.split() == b"2048 (2048, 2048)".split()


def test_a_limit_that_is_high_enough_is_left_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_file_limit() >= before[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]


def test_without_descriptors_the_server_does_not_spin() -> None:
    """It is told so by the system at each new connection; what it does then must not cost it all."""
    program = """
import os, resource, socket, time
import anyio
from starlette.responses import PlainTextResponse
from roost.serve.connections import Bounds
from roost.serve.http import listening

async def main():
    bounds = Bounds(connections=10_000, per_address=10_000)
    async with listening(PlainTextResponse("hello"), "127.0.0.1", 0, bounds=bounds) as url:
        port = int(url.rpartition(":")[2])
        # The peers are another process's, so that only the server runs out.
        read, write = os.pipe()
        if not os.fork():
            lines = []
            for _ in range(200):
                lines.append(socket.create_connection(("127.0.0.1", port)))
            os.write(write, b"x")
            time.sleep(4)
            os._exit(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        await anyio.to_thread.run_sync(os.read, read, 1)
        began = time.process_time()
        await anyio.sleep(2)
        print(time.process_time() - began)

anyio.run(main, backend_options={"use_uvloop": True})
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert said.returncode == 0, said.stderr.decode()
    assert float(said.stdout.split()[0]) < 1.0, said


async def _bare(scope: Scope, receive: Receive, send: Send) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


async def test_a_request_that_was_answered_is_forgotten_at_once() -> None:
    """Nothing that it refers to refers to it: what only the collector finds, it finds late."""
    gc.collect()
    gc.disable()
    try:
        async with listening(_bare, "127.0.0.1", 0) as url, await _connected(url) as line:
            for _ in range(50):
                await line.send(ASK)
                assert (await line.receive()).endswith(b"ok")
            kept = [each for each in gc.get_objects() if isinstance(each, RequestResponseCycle)]
            assert len(kept) < 5
    finally:
        gc.enable()


class _TakesWhole:
    """Answers how it got the body, what else it can get, and what comes after it."""

    def __init__(self) -> None:
        self.before: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        give = scope["extensions"][WHOLE_BODY]
        body, how = give(scope), "whole"
        if body is None:
            body, how, more = b"", "messages", True
            while more:
                message = await receive()
                body, more = body + message["body"], message["more_body"]
        told = [how, body.decode(), str(give(self.before)), "nothing"]
        with anyio.move_on_after(0.05):
            told[-1] = (await receive())["type"]
        self.before = scope
        await PlainTextResponse(" ".join(told))(scope, receive, send)


async def test_a_body_that_is_here_is_given_whole_and_another_one_as_messages() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
    async with (
        listening(_TakesWhole(), "127.0.0.1", 0) as url,
        await _connected(url) as line,
    ):
        await line.send(head + b"here")
        assert (await line.receive()).endswith(b"whole here None nothing")
        await line.send(head + b"la")
        await anyio.sleep(0.1)
        await line.send(b"te")
        assert (await line.receive()).endswith(b"messages late None nothing")


class _Loop:
    """An event loop whose time is told to it, and which has a timer or none."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, then: Callable[[], None]) -> Mock:
        self.timers.append((self.now + seconds, then))
        return Mock()

    def create_task(self, work: Coroutine[Any, Any, None]) -> Mock:
        work.close()
        return Mock()

    def pass_to(self, now: float) -> None:
        self.now = now
        due = [timer for timer in self.timers if timer[0] <= now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, then in due:
            then()


def test_a_connection_is_kept_for_some_seconds_after_its_last_answer() -> None:
    loop, transport = _Loop(), Mock(**{"is_closing.return_value": False})
    config = Config(APP, timeout_keep_alive=5, log_config=None)
    connection = HttpConnection(config, Connections(Bounds(head_seconds=1000)), {}, loop)  # type: ignore[arg-type]
    connection.connection_made(transport)
    for at in (100.0, 103.0, 106.0, 120.0):
        connection.data_received(ASK)
        loop.pass_to(at)  # a timer of the request before finds that there is another one
        connection.cycle.response_complete = True
        connection.on_response_complete()
        assert not transport.close.called
        assert len(loop.timers) == 2, "that of the first head, and one for all answers"
    loop.pass_to(124.9)
    assert not transport.close.called
    loop.pass_to(125.1)
    assert transport.close.called
