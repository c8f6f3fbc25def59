"""The name that a TLS client asks for behind CONNECT."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, SocketAttribute

from roost.ports.egress import Networking
from tests.egress.both_sides import PATIENT, QUICK, EgressSetup, connect, rest
from tests.egress.test_forward import COMMAND, end_forwarding, free_port
from tests.egress.tls import Client, Front, ask

DENIED = bytes((21, 3, 3, 0, 2, 2, 49))


@pytest.fixture
async def front() -> AsyncGenerator[Front, None]:
    async with Front().listening() as server:
        yield server


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def options(port: int, **changes: Any) -> dict[str, Any]:
    return {"resolve": here, "ports": frozenset((port,)), "bounds": PATIENT} | changes


def limited(*hosts: str) -> Networking:
    return Networking(kind="limited", allowed_hosts=hosts)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("a.example", "a.example"),
        ("a.example", "A.Example"),
        ("a.example", "other.example"),
        ("a.example", "x.wild.example"),
        ("a.example", None),
        ("127.0.0.1", None),
        ("127.0.0.1", "a.example"),
    ],
)
async def test_tls_is_carried_if_its_name_is_allowed_or_it_has_none(
    egress_setup: EgressSetup, front: Front, host: str, name: str | None
):
    networking = limited("a.example", "other.example", "*.wild.example", "127.0.0.1")
    async with egress_setup.opened(options(front.port), networking=networking) as inside:
        asked = partial(ask, inside.path("proxy.sock"), host, front.port, name)
        assert await anyio.to_thread.run_sync(asked) == "front"
    assert front.names == [name]
    assert egress_setup.refusals == []


@pytest.mark.parametrize(
    ("host", "name"),
    [("a.example", "b.example"), ("a.example", "wild.example"), ("127.0.0.1", "b.example")],
)
async def test_a_foreign_name_is_refused_and_the_log_says_what_to_do(
    egress_setup: EgressSetup, front: Front, host: str, name: str
):
    networking = limited("a.example", "*.wild.example", "127.0.0.1")
    async with egress_setup.opened(options(front.port), networking=networking) as inside:
        asked = partial(ask, inside.path("proxy.sock"), host, front.port, name)
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            await anyio.to_thread.run_sync(asked)
    (refused,) = egress_setup.refusals
    assert (refused.host, refused.port) == (name, front.port)
    assert refused.reason == "server_name_not_allowed"
    assert f"connected to {host}" in refused.hint and "add that name" in refused.hint
    assert front.names == []


async def test_where_everything_is_allowed_no_name_is_looked_at(
    egress_setup: EgressSetup, front: Front
):
    unrestricted = Networking(kind="unrestricted")
    async with egress_setup.opened(options(front.port), networking=unrestricted) as inside:
        asked = partial(ask, inside.path("proxy.sock"), "a.example", front.port, "b.example")
        assert await anyio.to_thread.run_sync(asked) == "front"
    assert front.names == ["b.example"]


async def test_curl_is_told_that_it_may_not_ask_for_another_name(
    egress_setup: EgressSetup, front: Front
):
    networking = limited("a.example")
    async with egress_setup.opened(options(front.port), networking=networking) as inside:
        for name, status in (("a.example", 0), ("b.example", 35)):
            port = free_port()
            curl = f"curl -skS --proxy http://127.0.0.1:{port} https://{name}:{front.port}/ "
            curl += f"--connect-to {name}:{front.port}:a.example:{front.port}"
            forward = f"{port}={inside.path('proxy.sock')}"
            ran = await anyio.run_process([*COMMAND, forward, "--", *curl.split()], check=False)
            end_forwarding(port)
            assert ran.returncode == status, ran.stderr
    assert ran.stderr.endswith(b"alert access denied\n")
    assert [refused.host for refused in egress_setup.refusals] == ["b.example"]
    assert front.names == ["a.example"]


async def test_a_hello_is_read_in_whatever_pieces_it_comes(egress_setup: EgressSetup, front: Front):
    """One byte in each segment, and one byte in each record besides."""
    for name, refusals in (("a.example", 0), ("b.example", 1)):
        hello = Client(name).says()
        tiny = b"".join(hello[:3] + b"\0\1" + hello[i : i + 1] for i in range(5, len(hello)))
        async with (
            egress_setup.opened(options(front.port), networking=limited("a.example")) as inside,
            inside.tunnel("a.example", front.port) as stream,
        ):
            for i in range(len(tiny)):
                await stream.send(tiny[i : i + 1])
            answer = await stream.receive()
        assert answer[0] == (21 if refusals else 22)
        assert len(egress_setup.refusals) == refusals
    assert front.names == ["a.example"]


async def test_a_hello_that_comes_before_the_tunnel_is_there_is_looked_at_too(
    egress_setup: EgressSetup, front: Front
):
    head = f"CONNECT a.example:{front.port} HTTP/1.0\r\n\r\n".encode()
    async with egress_setup.opened(options(front.port), networking=limited("a.example")) as inside:
        raw = await inside.raw(head + Client("b.example").says(), "proxy.sock")
    assert raw.endswith(b"\r\n\r\n" + DENIED)
    assert [refused.host for refused in egress_setup.refusals] == ["b.example"]
    assert front.names == []


@pytest.mark.parametrize("name", ["a.example", "b.example"])
@pytest.mark.parametrize("waits", [True, False])
async def test_a_second_hello_that_the_server_asks_for_is_looked_at_too(
    egress_setup: EgressSetup, front: Front, name: str, waits: bool
):
    """A server that wants another curve lets the client ask again, and takes the second name."""
    front.context.set_ecdh_curve("secp384r1")
    async with (
        egress_setup.opened(options(front.port), networking=limited("a.example")) as inside,
        inside.tunnel("a.example", front.port) as stream,
    ):
        client = Client("a.example")
        first = client.says()
        second = client.says(await _retry_of(front, first))
        changed = second.replace(b"a.example", name.encode())
        await stream.send(first if waits else first + changed)
        if waits:
            await stream.receive()
            await stream.send(changed)
        if name == "a.example":
            await egress_setup.until(lambda: front.names == ["a.example"] * 2)
        else:
            assert (await rest(stream)).endswith(DENIED)
            assert front.names == ["a.example"]
    assert [refused.host for refused in egress_setup.refusals] == ["b.example"] * (
        name != "a.example"
    )


async def _retry_of(front: Front, hello: bytes) -> bytes:
    """What the server answers, without the proxy in between."""
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = front.context.wrap_bio(heard, said, server_side=True)
    heard.write(hello)
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    front.names.clear()
    return said.read()


GARBAGE = {
    "another record first": bytes((21, 3, 1, 0, 2, 1, 90)) + Client("a.example").says(),
    "another version": b"\x16\x02" + Client("a.example").says()[2:],
    "no handshake": b"\x16\x03\x01\x00\x05hello",
    "a server's message": b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
    "no host name": Client("a.example").says().replace(b"a.example", b"a.exa\0ple"),
    "an odd address": Client("a.example").says().replace(b"a.example", b"127.0.0.1"[:7] + b"01"),
    "more than the message": b"\x16\x03\x01\x00\x05\x01\x00\x00\x00\x00",
    "too large": b"\x16\x03\x01\x40\x00\x01\x01\x00\x00" + bytes(0x3FFC) + b"\x16\x03\x01\xff\xff",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
async def test_what_begins_as_tls_and_is_none_is_refused(
    egress_setup: EgressSetup, front: Front, sent: bytes
):
    async with (
        egress_setup.opened(options(front.port), networking=limited("a.example")) as inside,
        inside.tunnel("a.example", front.port) as stream,
    ):
        await stream.send(sent + bytes(60_000) * sent.endswith(b"\xff"))
        assert await rest(stream) == DENIED
    (refused,) = egress_setup.refusals
    assert (refused.host, refused.reason) == ("a.example", "client_hello_unreadable")
    assert front.names == []


async def test_a_hello_that_does_not_end_is_given_up(egress_setup: EgressSetup, front: Front):
    bounds = options(front.port, bounds=QUICK)
    async with (
        egress_setup.opened(bounds, networking=limited("a.example")) as inside,
        inside.tunnel("a.example", front.port) as stream,
    ):
        await stream.send(Client("a.example").says()[:-1])
        assert await rest(stream) == DENIED
    assert [refused.reason for refused in egress_setup.refusals] == ["client_hello_unreadable"]


async def test_a_client_that_leaves_in_the_middle_of_its_hello_is_no_refusal(
    egress_setup: EgressSetup, front: Front
):
    async with (
        egress_setup.opened(options(front.port), networking=limited("a.example")) as inside,
        inside.tunnel("a.example", front.port) as stream,
    ):
        await stream.send(Client("a.example").says()[:-1])
        await stream.send_eof()
        assert await rest(stream) == b""
    assert egress_setup.refusals == [] and front.names == []


@asynccontextmanager
async def talking(talk: Callable[[ByteStream], Awaitable[None]]) -> AsyncGenerator[int, None]:
    """A server that does not speak TLS; gives its port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x80", b""])
async def test_a_server_that_speaks_first_is_heard_at_once_and_other_words_pass(
    egress_setup: EgressSetup, said: bytes
):
    """A client that says nothing hears the server all the same."""
    heard = []

    async def greet(stream: ByteStream) -> None:
        await stream.send(b"220 ready\r\n")
        heard.append(await rest(stream))
        await stream.send(b"221 bye\r\n")
        await stream.aclose()

    async with (
        talking(greet) as port,
        egress_setup.opened(options(port), networking=limited("a.example")) as inside,
        await connect(inside.path("proxy.sock")) as stream,
    ):
        await stream.send(f"CONNECT a.example:{port} HTTP/1.0\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"220 ready\r\n"):
            received += await stream.receive()
        if said:
            await stream.send(said)
        await stream.send_eof()
        assert await rest(stream) == b"221 bye\r\n"
    assert heard == [said]
    assert egress_setup.refusals == []


@pytest.mark.parametrize("early", [b"", b"\x17\x03\x03\x00\x05early"])
@pytest.mark.parametrize("answer", [b"", b"\x16\x03\x03\x00\x7a\x02" + bytes(121)])
async def test_what_follows_a_hello_is_held_until_the_server_answers_and_then_arrives(
    egress_setup: EgressSetup, early: bytes, answer: bytes
):
    """Also if the server's answer is only that it has none, or the client hangs up before it."""
    hello = Client("a.example").says()
    heard = []

    async def talk(stream: ByteStream) -> None:
        heard.append(await stream.receive())
        await (stream.send(answer) if answer else stream.send_eof())
        heard.append(await rest(stream))
        await stream.aclose()

    async with (
        talking(talk) as port,
        egress_setup.opened(options(port), networking=limited("a.example")) as inside,
        inside.tunnel("a.example", port) as stream,
    ):
        await stream.send(hello + early)
        await stream.send_eof()
        assert await rest(stream) == answer
        await egress_setup.until(lambda: len(heard) == 2)
    assert heard == [hello, early]
    assert egress_setup.refusals == []
