"""The connections to the model's server: kept, closed, broken, and what comes over them."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener

from roost.egress import origin as module
from roost.egress.origin import Origin
from tests.egress.places import QUICK, Far, Reply, Seen, answer, chunk

HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def reached(far: Far) -> AsyncGenerator[Origin, None]:
    origin = Origin(httpx2.URL(far.url), QUICK)
    yield origin
    await origin.close()


async def ask(origin: Origin, body: bytes = b"{}") -> httpx2.Response:
    response = await origin.send("POST", b"/v1/messages", [(b"a", b"b")], body)
    try:
        await response.aread()
    finally:
        await response.aclose()
    return response


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
    async with reached(far) as origin:
        for n in range(5):
            far.reply = answer({"n": n})
            assert (await ask(origin)).json() == {"n": n}
        assert far.connections == 1
        assert far.seen[0].headers == [
            ("host", f"127.0.0.1:{far.port}"),
            ("a", "b"),
            ("content-length", "2"),
        ]
    with anyio.fail_after(60):
        while far.open:  # noqa: ASYNC110 - the other side has no bell
            await anyio.sleep(0.005)


async def test_requests_at_the_same_time_have_connections_of_their_own(far: Far):
    async with reached(far) as origin, anyio.create_task_group() as tasks:
        far.reply = raw(HEAD + b"content-length: 2\r\n\r\n", b"ok")
        for _ in range(4):
            tasks.start_soon(ask, origin)
    assert (len(far.seen), far.connections) == (4, 4)


async def test_a_connection_that_the_server_has_closed_since_is_not_used_again(far: Far):
    async with reached(far) as origin:
        far.reply = raw(HEAD + b"content-length: 2\r\n\r\nok", close=True)
        for _ in range(3):
            assert (await ask(origin)).content == b"ok"
            with anyio.fail_after(60):
                while far.open:  # noqa: ASYNC110 - the other side has no bell
                    await anyio.sleep(0.005)


async def test_an_old_connection_is_not_used_again(far: Far, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_KEPT_SECONDS", -1)
    async with reached(far) as origin:
        await ask(origin)
        await ask(origin)
        assert origin._kept == []


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
    async with reached(far) as origin:
        far.reply = raw(*pieces)
        assert (await ask(origin)).content == b"ok"
        assert origin._kept == []


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
    async with reached(far) as origin:
        far.reply = raw(*pieces)
        assert (await ask(origin)).content == body
        assert len(origin._kept) == 1


async def test_an_answer_without_a_length_ends_with_its_connection(far: Far):
    async with reached(far) as origin:
        far.reply = raw(HEAD + b"\r\n", b"abc", close=True)
        assert (await ask(origin)).content == b"abc"
        assert origin._kept == []


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
    async with reached(far) as origin:
        far.reply = raw(*pieces, close=True)
        with pytest.raises(httpx2.TransportError):
            await ask(origin)
        assert origin._kept == []


async def test_a_body_that_nobody_reads_to_its_end_closes_its_connection(far: Far):
    async with reached(far) as origin:
        far.reply = raw(HEAD + b"content-length: 9\r\n\r\nabc")
        response = await origin.send("GET", b"/v1/models", [], b"")
        await response.aclose()
        assert origin._kept == []
    assert ("content-length", "0") not in far.seen[0].headers


async def test_a_server_that_says_nothing_is_given_up(far: Far):
    far.reply = raw()
    origin = Origin(httpx2.URL(far.url), QUICK)
    origin._bounds = QUICK.__class__(upstream_seconds=0.1)
    with pytest.raises(httpx2.TimeoutException):
        await ask(origin)


async def test_where_nobody_listens_there_is_no_connection():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        origin = Origin(httpx2.URL(f"http://127.0.0.1:{taken.getsockname()[1]}"), QUICK)
        with pytest.raises(httpx2.NetworkError):
            await ask(origin)


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
async def secured(certificate: Path) -> AsyncGenerator[Far, None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    far = Far()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    far.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    secure = TLSListener(listener, context, standard_compatible=False)
    async with secure, anyio.create_task_group() as tasks:
        tasks.start_soon(secure.serve, far._talk)
        yield far
        tasks.cancel_scope.cancel()


async def test_over_tls_connections_are_kept_too(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module, "_tls", lambda: trusting)
    async with secured(certificate) as far:
        origin = Origin(httpx2.URL(f"https://localhost:{far.port}"), QUICK)
        for n in range(3):
            far.reply = answer({"n": n})
            assert (await ask(origin)).json() == {"n": n}
        assert far.connections == 1
        await origin.close()


async def test_a_server_with_a_certificate_that_nobody_vouches_for_is_not_asked(certificate: Path):
    async with secured(certificate) as far:
        origin = Origin(httpx2.URL(f"https://localhost:{far.port}"), QUICK)
        with pytest.raises(httpx2.TransportError):
            await ask(origin)
        assert far.seen == []
