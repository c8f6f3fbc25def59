"""The connections to the model's server: kept, closed, broken, and what comes over them."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSListener, TLSStream

from roost.egress import connections as module
from roost.egress.connections import UpstreamConnections
from roost.egress.options import EgressBounds
from roost.testing.cancelling import cancelled_at_each_step
from tests.egress.both_sides import (
    QUICK,
    Far,
    Reply,
    Seen,
    answer,
    chunk,
    until,
    upstream_connections,
)

HEAD = b"HTTP/1.1 200 OK\r\n"


class Asker:
    """A client, and the one server that it asks."""

    def __init__(self, client: UpstreamConnections, url: str) -> None:
        self.client = client
        self.url = httpx2.URL(url)

    async def ask(self, body: bytes = b"{}", method: str = "POST") -> httpx2.Response:
        async with self.client.send(
            self.url, method, b"/v1/messages", [(b"a", b"b")], body
        ) as response:
            await response.aread()
        return response

    async def begin(self, body: bytes = b"{}") -> None:
        """Ask, and do not read the answer's body."""
        async with self.client.send(self.url, "POST", b"/v1/messages", [], body):
            pass


@asynccontextmanager
async def reached(far: Far, bounds: EgressBounds = QUICK) -> AsyncGenerator[Asker, None]:
    client = upstream_connections(bounds)
    try:
        yield Asker(client, far.url)
    finally:
        await client.close()


def raw(*pieces: bytes, close: bool = False) -> Reply:
    async def reply(seen: Seen, stream: ByteStream) -> None:
        for piece in pieces:
            await stream.send(piece)
            await anyio.sleep(0.01)
        if close:
            await stream.aclose()

    return reply


@pytest.fixture
async def far() -> AsyncGenerator[Far, None]:
    async with Far().listening() as far:
        yield far


async def test_one_connection_carries_one_request_after_the_other(far: Far):
    async with reached(far) as asker:
        for n in range(5):
            far.reply = answer({"n": n})
            assert (await asker.ask()).json() == {"n": n}
        assert far.connections == 1
        assert far.seen[0].headers == [
            ("host", f"127.0.0.1:{far.port}"),
            ("a", "b"),
            ("content-length", "2"),
        ]
    await until(lambda: far.open == 0)


async def test_requests_at_the_same_time_have_connections_of_their_own(far: Far):
    async with reached(far) as asker, anyio.create_task_group() as tasks:
        far.reply = raw(HEAD + b"content-length: 2\r\n\r\n", b"ok")
        for _ in range(4):
            tasks.start_soon(asker.ask)
    assert (len(far.seen), far.connections) == (4, 4)


async def test_a_connection_that_the_server_has_closed_since_is_not_used_again(far: Far):
    async with reached(far) as asker:
        far.reply = raw(HEAD + b"content-length: 2\r\n\r\nok", close=True)
        for _ in range(3):
            assert (await asker.ask()).content == b"ok"
            await until(lambda: far.open == 0)


async def test_a_connection_that_is_not_used_for_long_is_closed(
    far: Far, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.05)
    async with reached(far) as asker, anyio.create_task_group() as tasks:
        tasks.start_soon(asker.client.tidy)
        await asker.ask()
        await until(lambda: far.open == 0)
        assert asker.client.connections == 0
        assert (await asker.ask()).status_code == 200
        tasks.cancel_scope.cancel()


async def test_of_many_connections_few_are_kept(far: Far):
    async with reached(far) as asker:
        async with anyio.create_task_group() as tasks:
            far.reply = raw(HEAD + b"content-length: 2\r\n\r\n", b"ok")
            for _ in range(20):
                tasks.start_soon(asker.ask)
        assert far.connections == 20
        assert asker.client.connections == 8
        await until(lambda: far.open == 8)


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nok"],
        [HEAD + b"content-length: 2\r\n\r\nok" + HEAD + b"content-length: 4\r\n\r\nmore"],
        [b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"],
    ],
)
async def test_a_connection_that_cannot_be_trusted_any_more_is_closed(
    far: Far, pieces: list[bytes]
):
    async with reached(far) as asker:
        far.reply = raw(*pieces)
        assert (await asker.ask()).content == b"ok"
        assert asker.client.connections == 0


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        (
            [HEAD, b"transfer-encoding: chunked\r\n\r\n", chunk(b"a"), chunk(b"bc"), chunk(b"")],
            b"abc",
        ),
        ([HEAD + b"content-length: 3\r\n", b"\r\na", b"b", b"c"], b"abc"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"content-length: 3\r\n\r\nabc"], b"abc"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
        (
            [
                HEAD
                + b"content-encoding: gzip\r\ncontent-length: 23\r\n\r\n"
                + gzip.compress(b"abc")
            ],
            b"abc",
        ),
    ],
)
async def test_every_form_of_an_answer_is_read_to_its_end(
    far: Far, pieces: list[bytes], body: bytes
):
    async with reached(far) as asker:
        far.reply = raw(*pieces)
        assert (await asker.ask()).content == body
        assert asker.client.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection(far: Far):
    async with reached(far) as asker:
        far.reply = raw(HEAD + b"\r\n", b"abc", close=True)
        assert (await asker.ask()).content == b"abc"
        assert asker.client.connections == 0


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTT"],
        [HEAD + b"content-length: 9\r\n\r\nabc"],
        [HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc"],
        [b"SSH-2.0-hello\r\n"],
        [HEAD + b"x: y\r\n" * 60_000],
    ],
)
async def test_an_answer_that_is_cut_off_or_is_none_is_an_error(far: Far, pieces: list[bytes]):
    async with reached(far) as asker:
        far.reply = raw(*pieces, close=True)
        with pytest.raises(httpx2.TransportError):
            await asker.ask()
        assert asker.client.connections == 0


async def test_a_body_that_nobody_reads_to_its_end_closes_its_connection(far: Far):
    async with reached(far) as asker:
        far.reply = raw(HEAD + b"content-length: 9\r\n\r\nabc")
        async with asker.client.send(asker.url, "GET", b"/v1/models", [], b""):
            pass
        assert asker.client.connections == 0
    assert ("content-length", "0") not in far.seen[0].headers


async def test_a_server_that_says_nothing_is_given_up(far: Far):
    far.reply = raw()
    async with reached(far, EgressBounds(upstream_seconds=0.1)) as asker:
        with pytest.raises(httpx2.TimeoutException):
            await asker.ask()
        assert asker.client.connections == 0


async def test_where_nobody_listens_there_is_no_connection():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        asker = Asker(upstream_connections(), f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(httpx2.NetworkError):
            await asker.ask()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `localhost`, and signed by itself."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {path} -out {path}.crt",
        shell=True,
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


@asynccontextmanager
async def secured(
    certificate: Path, talk: Callable[[TLSStream], Awaitable[None]] | None = None
) -> AsyncGenerator[Far, None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    far = Far()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    far.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    secure = TLSListener(listener, context, standard_compatible=False)
    async with secure, anyio.create_task_group() as tasks:
        tasks.start_soon(secure.serve, talk or far._talk)
        yield far
        tasks.cancel_scope.cancel()


async def test_over_tls_connections_are_kept_too(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module, "_tls", lambda: trusting)
    async with secured(certificate) as far:
        asker = Asker(upstream_connections(), f"https://localhost:{far.port}")
        for n in range(3):
            far.reply = answer({"n": n})
            assert (await asker.ask()).json() == {"n": n}
        assert far.connections == 1
        await asker.client.close()


async def test_a_server_with_a_certificate_that_nobody_vouches_for_is_not_asked(certificate: Path):
    async with secured(certificate) as far:
        asker = Asker(upstream_connections(), f"https://localhost:{far.port}")
        with pytest.raises(httpx2.TransportError):
            await asker.ask()
        assert far.seen == []


def numbered() -> Reply:
    """Each answer says which one it is, and comes in one piece with its head."""
    count = itertools.count()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        body = b"answer %d" % next(count)
        await stream.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)

    return reply


async def test_an_answer_that_nobody_read_is_not_given_to_the_next_request(far: Far):
    far.reply = numbered()
    async with reached(far) as asker:
        await asker.begin()
        assert (await asker.ask()).content == b"answer 1"
    assert far.connections == 2


@pytest.mark.parametrize(
    "surplus",
    [
        b"x",
        b"\r\n",
        HEAD + b"content-length: 6\r\n\r\nforged",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        HEAD,
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_what_comes_after_an_answer_is_not_taken_for_the_next(
    far: Far, surplus: bytes, late: bool
):
    whole = HEAD + b"content-length: 2\r\n\r\nok"

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(whole if late else whole + surplus)
        if late:
            await stream.send(surplus)
            sent.set()

    async with reached(far) as asker:
        for _ in range(3):
            sent = anyio.Event()
            far.reply = reply
            assert (await asker.ask()).content == b"ok"
            if late:  # it is in the system's buffer before the next request begins
                await sent.wait()
    assert far.connections == 3


@pytest.mark.parametrize("size", [1024, 65536, 131072])
async def test_what_comes_in_one_burst_with_an_answer_is_not_taken_for_the_next(
    far: Far, size: int
):
    """The layers below read by 64 KiB: an answer may end where one of them has read no further."""
    await check_burst(far, Asker(upstream_connections(), far.url), size)


@pytest.mark.parametrize("size", [1024, 16384, 65536])
async def test_over_tls_it_is_not_either(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, size: int
):
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module, "_tls", lambda: trusting)
    async with secured(certificate) as far:
        await check_burst(far, Asker(upstream_connections(), f"https://localhost:{far.port}"), size)


async def test_what_comes_in_a_record_of_its_own_behind_an_answer_is_not_either(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both come in one segment: the second is received with the first, and nobody has decrypted it yet."""
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module, "_tls", lambda: trusting)

    async def reply(seen: Seen, stream: ByteStream) -> None:
        assert isinstance(stream, TLSStream)
        for text in (seen.body, b"forged"):
            stream._ssl_object.write(HEAD + b"content-length: %d\r\n\r\n" % len(text) + text)
        await stream.transport_stream.send(stream._write_bio.read())

    async with secured(certificate) as far:
        far.reply = reply
        asker = Asker(upstream_connections(), f"https://localhost:{far.port}")
        for number in range(3):
            mine = b"request %d" % number
            assert (await asker.ask(mine)).content == mine
        assert far.connections == 3
        await asker.client.close()


@pytest.mark.parametrize(
    ("records", "rest", "decrypted"), [([b"ab"], b"b", True), ([b"a", b"bc"], b"bc", False)]
)
async def test_a_stream_over_tls_knows_of_what_it_was_given_and_nobody_has_read(
    certificate: Path, records: list[bytes], rest: bytes, decrypted: bool
):
    """A part of a record that is decrypted already, or a record that is not yet."""

    async def talk(stream: TLSStream) -> None:
        async with stream:
            for text in records:
                stream._ssl_object.write(text)
            await stream.transport_stream.send(stream._write_bio.read())
            await anyio.sleep_forever()

    async with secured(certificate, talk) as far:
        plain = await module._Network().connect_tcp("127.0.0.1", far.port)
        stream = await plain.start_tls(ssl.create_default_context(cafile=certificate), "localhost")
        try:
            assert await stream.read(1) == b"a"
            within = module._within(stream)
            assert isinstance(within, TLSStream)
            unread = within._ssl_object.pending() > 0, within._read_bio.pending > 0
            assert unread == (decrypted, not decrypted)
            assert stream.get_extra_info("is_readable")
            assert await stream.read(100) == rest
            assert not stream.get_extra_info("is_readable")
        finally:
            await stream.aclose()


async def check_burst(far: Far, asker: Asker, size: int) -> None:
    forged = HEAD + b"content-length: 6\r\n\r\nforged"

    async def reply(seen: Seen, stream: ByteStream) -> None:
        head = HEAD + b"content-length: %06d\r\n\r\n"
        body = seen.body.ljust(size - len(head % 0))
        await stream.send(head % len(body) + body + forged)

    far.reply = reply
    for number in range(3):
        mine = b"request %d" % number
        assert (await asker.ask(mine)).content.rstrip() == mine
    assert far.connections == 3
    await asker.client.close()


async def test_an_answer_before_the_request_was_sent_ends_its_connection(far: Far):
    """A server that refuses early and closes has not read what the next request would follow."""

    async def early(stream: SocketStream) -> None:
        async with stream:
            await stream.receive(10)
            await stream.send(HEAD + b"content-length: 2\r\n\r\nno")
            await stream.send_eof()
            with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                while True:
                    await stream.receive()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, early)
        asker = Asker(upstream_connections(), f"http://127.0.0.1:{port}")
        for _ in range(2):
            assert (await asker.ask(b"x" * 4_000_000)).content == b"no"
            assert asker.client.connections == 0
        tasks.cancel_scope.cancel()


def echoing() -> Reply:
    """Each answer repeats what was asked."""

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await answer(seen.body)(seen, stream)

    return reply


@pytest.mark.parametrize("warm", [False, True])
async def test_cancelled_anywhere_nothing_is_left_for_the_next_request(far: Far, warm: bool):
    """Both a request that gets a connection of its own, and one that gets a kept one."""
    far.reply = echoing()
    numbers = itertools.count()
    async with reached(far) as asker:

        async def work() -> None:
            if not warm:
                await asker.client.close()
            await asker.ask(b"theirs %d" % next(numbers) + b"x" * 100_000)

        step = 0
        async for step in cancelled_at_each_step(work):
            mine = b"mine %d" % next(numbers)
            assert (await asker.ask(mine)).content == mine, f"step {step}"
            assert asker.client.connections == 1, f"a connection was left at step {step}"
        assert step > 3


async def test_a_client_that_is_closed_anywhere_leaves_no_connection(far: Far):
    async def work() -> None:
        async with reached(far) as asker:
            await asker.ask()

    async for step in cancelled_at_each_step(work):
        assert step > 0
        await until(lambda: far.open == 0)


async def test_a_handshake_that_is_cancelled_leaves_no_connection(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module, "_tls", lambda: trusting)
    async with secured(certificate) as far:
        asker = Asker(upstream_connections(), f"https://localhost:{far.port}")
        async for step in cancelled_at_each_step(asker.ask):
            await until(lambda: far.open <= asker.client.connections)
            assert asker.client.connections <= 1, f"step {step}"
            await asker.client.close()
