"""The road to the network: what is carried, and to whom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream

from roost.ports.egress import Networking
from tests.egress.both_sides import (
    LOOPBACK,
    EgressSetup,
    Seen,
    answer,
    chunk,
    connect,
    repository,
    rest,
)

PROXY = "proxy.sock"


class Names:
    """A resolver that answers as told, each time with the next answer."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, Exception):
            raise found
        return found


def limited(*hosts: str, **more: Any) -> dict[str, Any]:
    return {"networking": Networking(kind="limited", allowed_hosts=hosts, **more)}


UNRESTRICTED = {"networking": Networking(kind="unrestricted")}


def here(**options: Any) -> dict[str, Any]:
    return {"resolve": Names(["127.0.0.1"])} | options


async def test_without_networking_there_is_no_proxy(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside:
        assert [each.socket for each in inside.opened.endpoints] == ["/run/roost/model.sock"]
        assert not any("proxy" in name.lower() for name in inside.opened.environ)


async def test_programs_are_told_where_the_proxy_is(egress_setup: EgressSetup):
    async with egress_setup.opened(**UNRESTRICTED) as inside:
        environ = inside.opened.environ
        assert environ["HTTPS_PROXY"] == environ["http_proxy"] == "http://127.0.0.1:3128"
        assert environ["NODE_USE_ENV_PROXY"] == "1"
        assert [(each.port, each.socket) for each in inside.opened.endpoints] == [
            (None, "/run/roost/model.sock"),
            (3128, "/run/roost/proxy.sock"),
        ]


async def echoing(seen: Seen, stream: ByteStream) -> None:
    while True:
        await stream.send((await stream.receive()).upper())


@pytest.mark.parametrize("networking", [limited("*.example"), UNRESTRICTED])
async def test_a_tunnel_to_an_allowed_host_carries_both_ways(
    egress_setup: EgressSetup, networking: Any
):
    egress_setup.far.reply = answer(b"hello")
    async with (
        egress_setup.opened(here(), **networking) as inside,
        inside.tunnel("a.example", egress_setup.far.port) as stream,
    ):
        await stream.send(b"GET /x HTTP/1.1\r\nhost: a.example\r\n\r\n")
        assert (await stream.receive()).endswith(b"hello")
    assert egress_setup.far.seen[0].target == "/x"
    assert egress_setup.refusals == []


async def test_what_is_sent_before_the_tunnel_is_there_is_not_lost(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(b"hello")
    async with (
        egress_setup.opened(here(), **limited("a.example")) as inside,
        await connect(inside.path(PROXY)) as stream,
    ):
        head = f"CONNECT a.example:{egress_setup.far.port} HTTP/1.0\r\n\r\n".encode()
        await stream.send(head + b"GET /early HTTP/1.1\r\nhost: x\r\n\r\n")
        received = b""
        while not received.endswith(b"hello"):
            received += await stream.receive()
    assert egress_setup.far.seen[0].target == "/early"


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("b.example", None, "host_not_allowed"),
        ("example", None, "host_not_allowed"),
        ("127.0.0.1", None, "host_not_allowed"),
        ("[::1]", None, "host_not_allowed"),
        ("a.example", 22, "port_not_allowed"),
        ("a.example", 8080, "port_not_allowed"),
    ],
)
async def test_what_the_rules_do_not_allow_is_refused_and_reported(
    egress_setup: EgressSetup, host: str, port: int | None, reason: str
):
    names = Names(["127.0.0.1"])
    port = port or egress_setup.far.port
    async with egress_setup.opened(here(resolve=names), **limited("a.example")) as inside:
        raw = await inside.raw(f"CONNECT {host}:{port} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), PROXY)
    assert raw.startswith(b"HTTP/1.1 403")
    (refused,) = egress_setup.refusals
    assert (refused.session_id, refused.host) == ("sesn_1", host.strip("[]"))
    assert (refused.port, refused.reason) == (port, reason)
    assert names.asked == []  # a name that is not allowed is not even looked up


async def test_package_hosts_are_the_operators_and_only_when_asked_for(egress_setup: EgressSetup):
    options = here(package_hosts=("packages.example",))
    line = f"CONNECT packages.example:{egress_setup.far.port} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    async with egress_setup.opened(options, **limited()) as inside:
        assert (await inside.raw(line, PROXY)).startswith(b"HTTP/1.1 403")
    async with (
        egress_setup.opened(options, **limited(package_managers=True)) as inside,
        inside.tunnel("packages.example", egress_setup.far.port),
    ):
        pass


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "fd00:ec2::254"],
)
async def test_a_name_that_leads_inside_is_refused(egress_setup: EgressSetup, address: str):
    options = here(resolve=Names([address]), allow_networks=())
    async with egress_setup.opened(options, **UNRESTRICTED) as inside:
        raw = await inside.raw(b"CONNECT evil.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", PROXY)
        literal = f"[{address}]" if ":" in address else address
        direct = await inside.raw(
            f"CONNECT {literal}:443 HTTP/1.1\r\nhost: x\r\n\r\n".encode(), PROXY
        )
    assert raw.startswith(b"HTTP/1.1 403") and direct.startswith(b"HTTP/1.1 403")
    assert [refused.reason for refused in egress_setup.refusals] == ["address_not_allowed"] * 2
    assert egress_setup.far.open == 0


async def test_a_name_is_looked_up_once_and_the_checked_address_is_used(egress_setup: EgressSetup):
    """Rebinding: a second answer would lead to an address that must not be reached."""
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    async with (
        egress_setup.opened(here(resolve=names), **limited("a.example")) as inside,
        inside.tunnel("a.example", egress_setup.far.port),
    ):
        await egress_setup.until(lambda: egress_setup.far.open == 1)
    assert names.asked == ["a.example"]
    assert egress_setup.refusals == []


async def test_bad_addresses_among_good_ones_are_passed_over(egress_setup: EgressSetup):
    names = Names(["169.254.169.254", "10.0.0.1", "127.0.0.1"])
    async with (
        egress_setup.opened(here(resolve=names), **limited("a.example")) as inside,
        inside.tunnel("a.example", egress_setup.far.port),
    ):
        pass


@pytest.mark.parametrize("failure", [OSError(), UnicodeError(), TimeoutError()])
async def test_a_name_that_nobody_knows_is_an_error_and_not_a_refusal(
    egress_setup: EgressSetup, failure: Exception
):
    async with egress_setup.opened(here(resolve=Names(failure)), **UNRESTRICTED) as inside:
        raw = await inside.raw(b"CONNECT nowhere.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", PROXY)
    assert raw.startswith(b"HTTP/1.1 502")
    assert egress_setup.refusals == []


async def test_a_host_that_does_not_answer_is_an_error(egress_setup: EgressSetup):
    async with egress_setup.opened(here(ports=frozenset((1,))), **UNRESTRICTED) as inside:
        raw = await inside.raw(b"CONNECT closed.example:1 HTTP/1.1\r\nhost: x\r\n\r\n", PROXY)
    assert raw.startswith(b"HTTP/1.1 504")


async def test_a_plain_request_is_relayed_without_what_is_the_proxys(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(b"page", content_type="text/plain")
    port = egress_setup.far.port
    request = (
        f"POST http://a.example:{port}/p?q=1 HTTP/1.1\r\nHost: other.example\r\n"
        "Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nX-Own: 1\r\n"
        "Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nContent-Length: 4\r\n\r\nbody"
    ).encode()
    async with egress_setup.opened(here(), **limited("a.example")) as inside:
        raw = await inside.raw(request, PROXY)
    assert raw.startswith(b"HTTP/1.1 200") and raw.endswith(b"page")
    assert b"connection: close" in raw.lower()
    (seen,) = egress_setup.far.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/p?q=1", b"body")
    assert dict(seen.headers) == {
        "host": f"a.example:{port}",
        "connection": "close",
        "x-own": "1",
        "content-length": "4",
    }


async def test_a_plain_request_in_chunks_and_an_answer_without_a_length_pass(
    egress_setup: EgressSetup,
):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nuntil")
        await stream.send(b" the end")
        await stream.aclose()

    egress_setup.far.reply = reply
    request = (
        f"PUT http://a.example:{egress_setup.far.port}/ HTTP/1.1\r\nhost: a\r\n"
        "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    ).encode()
    async with egress_setup.opened(here(), **limited("a.example")) as inside:
        raw = await inside.raw(request, PROXY)
    assert egress_setup.far.seen[0].body == b"abc"
    # How the pieces are cut is up to the network; that the last one is there, is not.
    body = raw.partition(b"\r\n\r\n")[2]
    assert re.sub(rb"(^|\r\n)[0-9a-f]+\r\n", b"", body) == b"until the end\r\n"
    assert body.endswith(b"0\r\n\r\n")


async def test_a_plain_request_obeys_the_same_rules(egress_setup: EgressSetup):
    async with egress_setup.opened(here(), **limited("a.example")) as inside:
        raw = await inside.raw(b"GET http://b.example/ HTTP/1.1\r\nhost: a.example\r\n\r\n", PROXY)
    assert raw.startswith(b"HTTP/1.1 403")
    assert b"b.example is not an allowed host" in raw
    assert egress_setup.refusals[0].host == "b.example"


async def test_a_server_that_speaks_no_http_is_an_error(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(b"SSH-2.0\r\n\r\n")

    egress_setup.far.reply = reply
    request = f"GET http://a.example:{egress_setup.far.port}/ HTTP/1.1\r\nhost: a\r\n\r\n".encode()
    async with egress_setup.opened(here(), **limited("a.example")) as inside:
        assert (await inside.raw(request, PROXY)).startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\nhost: a.example\r\n\r\n",
        b"CONNECT a.example:443\r\nX: y HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        b"GET http://a.example/\r\nX: y HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://user@a.example/ HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nhost: a\r\nx:\x00\r\n\r\n",
        b"GET http://a.example/ HTTP/2.0\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"\r\n\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_refused_and_the_connection_closed(
    egress_setup: EgressSetup, request_: bytes
):
    options = here(allow_networks=LOOPBACK, ports=frozenset((80, 443)))
    async with egress_setup.opened(options, **limited("a.example")) as inside:
        raw = await inside.raw(request_, PROXY)
    assert raw.startswith((b"HTTP/1.1 400", b"HTTP/1.1 505"))
    assert egress_setup.far.seen == []


async def test_a_head_that_is_too_large_is_refused(egress_setup: EgressSetup):
    async with egress_setup.opened(**UNRESTRICTED) as inside:
        for name in ("model.sock", PROXY):
            raw = await inside.raw(b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000, name)
            assert raw.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("name", ["model.sock", PROXY])
async def test_a_head_that_comes_too_slowly_is_given_up(egress_setup: EgressSetup, name: str):
    async with (
        egress_setup.opened(**UNRESTRICTED) as inside,
        await connect(inside.path(name)) as stream,
    ):
        began = anyio.current_time()
        raw = b""
        async with anyio.create_task_group() as tasks:

            async def drip() -> None:
                for letter in b"GET / HTTP/1.1\r\nx: " + b"y" * 1000:
                    await stream.send(bytes([letter]))
                    await anyio.sleep(0.02)

            tasks.start_soon(drip)
            raw = await rest(stream)
            tasks.cancel_scope.cancel()
        assert raw.startswith(b"HTTP/1.1 408")
        assert anyio.current_time() - began < 15  # all of it would take 20


async def test_a_body_that_comes_too_slowly_is_given_up(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
        assert (await inside.raw(head)).startswith(b"HTTP/1.1 408")


async def test_a_connection_that_says_nothing_is_closed(egress_setup: EgressSetup):
    bounds = msgspec.structs.replace(egress_setup.options().bounds, keep_alive_seconds=0.1)
    async with egress_setup.opened({"bounds": bounds}, **UNRESTRICTED) as inside:
        for name in ("model.sock", PROXY):
            assert await inside.raw(b"", name) == b""


async def test_one_side_may_end_while_the_other_goes_on(egress_setup: EgressSetup):
    async def talk(seen: Seen, stream: ByteStream) -> None:
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        await stream.send(b"said after the other side had ended")
        await stream.aclose()

    egress_setup.far.reply = talk
    async with (
        egress_setup.opened(here(), **limited("a.example")) as inside,
        inside.tunnel("a.example", egress_setup.far.port) as stream,
    ):
        await stream.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await stream.send_eof()
        assert await rest(stream) == b"said after the other side had ended"


@pytest.mark.parametrize("side", ["near", "far"])
async def test_a_connection_cut_on_one_side_is_cut_on_the_other(
    egress_setup: EgressSetup, side: str
):
    async def hang_up(seen: Seen, stream: ByteStream) -> None:
        await stream.aclose()

    egress_setup.far.reply = hang_up if side == "far" else echoing
    async with egress_setup.opened(here(), **limited("a.example")) as inside:
        async with inside.tunnel("a.example", egress_setup.far.port) as stream:
            await egress_setup.until(lambda: egress_setup.far.open == 1)
            if side == "far":
                await stream.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert await rest(stream) == b""
        await egress_setup.until(lambda: egress_setup.far.open == 0)


async def test_a_tunnel_that_carries_nothing_is_closed(egress_setup: EgressSetup):
    bounds = msgspec.structs.replace(egress_setup.options().bounds, idle_seconds=1.2)
    egress_setup.far.reply = echoing
    async with egress_setup.opened(here(bounds=bounds), **limited("a.example")) as inside:
        async with inside.tunnel("a.example", egress_setup.far.port) as stream:
            await stream.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            for _ in range(6):  # longer than the limit, but never quiet for that long
                await anyio.sleep(0.25)
                await stream.send(b"x")
                assert await stream.receive() == b"X"
            began = anyio.current_time()
            assert await rest(stream) == b""
            assert anyio.current_time() - began < 60
        await egress_setup.until(lambda: egress_setup.far.open == 0)


async def test_a_megabyte_arrives_as_it_was_sent_at_no_more_than_the_pace(
    egress_setup: EgressSetup,
):
    data = bytes(range(256)) * 4096
    bounds = msgspec.structs.replace(egress_setup.options().bounds, bytes_per_second=500_000)

    async def give(seen: Seen, stream: ByteStream) -> None:
        await stream.send(data)
        await stream.aclose()

    egress_setup.far.reply = give
    async with (
        egress_setup.opened(here(bounds=bounds), **limited("a.example")) as inside,
        inside.tunnel("a.example", egress_setup.far.port) as stream,
    ):
        began = anyio.current_time()
        await stream.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await rest(stream) == data
        assert 0.8 < anyio.current_time() - began < 60


async def test_fifty_tunnels_at_once_do_not_mix(egress_setup: EgressSetup):
    async def give(seen: Seen, stream: ByteStream) -> None:
        await stream.send(seen.target.encode() * 5000)
        await stream.aclose()

    egress_setup.far.reply = give
    right = []
    async with egress_setup.opened(here(), **limited("a.example")) as inside:

        async def fetch(number: int) -> None:
            async with inside.tunnel("a.example", egress_setup.far.port) as stream:
                await stream.send(f"GET /{number} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                right.append(await rest(stream) == f"/{number}".encode() * 5000)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(fetch, number)
    assert right == [True] * 50


async def test_a_flood_of_refusals_is_counted_and_not_written_out(egress_setup: EgressSetup):
    async with egress_setup.opened(**limited()) as inside:
        asked = 0
        while (
            asked - len(egress_setup.refusals) < 5
        ):  # more are written out for every second that passes
            await inside.raw(b"CONNECT a.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", PROXY)
            asked += 1
        assert len(egress_setup.refusals) >= 60
        await anyio.sleep(1.1)
        await inside.raw(b"CONNECT a.example:443 HTTP/1.1\r\nhost: x\r\n\r\n", PROXY)
    left_out = sum(refused.unreported for refused in egress_setup.refusals)
    assert len(egress_setup.refusals) + left_out == asked + 1


async def test_the_systems_own_resolver_is_used_by_default(egress_setup: EgressSetup):
    async with (
        egress_setup.opened(**limited("localhost")) as inside,
        inside.tunnel("localhost", egress_setup.far.port),
    ):
        await egress_setup.until(lambda: egress_setup.far.open == 1)


async def test_a_server_that_answers_before_it_has_read_all_is_heard(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await answer(b"enough", status=413)(seen, stream)
        await stream.aclose()

    async def talk(stream: ByteStream) -> None:
        await stream.receive()
        await reply(Seen("PUT", "/", [], b""), stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    head = f"PUT http://a.example:{port}/ HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        options = here(ports=frozenset((port,)))
        async with egress_setup.opened(options, **limited("a.example")) as inside:
            raw = await inside.raw(head.encode() + b"x" * 1000, PROXY)
        tasks.cancel_scope.cancel()
    assert raw.startswith(b"HTTP/1.1 413") and raw.endswith(b"enough")


@pytest.mark.parametrize(
    "framing",
    [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 5",
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5, 6",
        "content-length: +5",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: identity",
        "transfer-encoding : chunked",
        "transfer-encoding:\x0bchunked",
        "connection: content-length\r\ncontent-length: 5",
        "connection: close, host\r\ncontent-length: 5",
    ],
)
@pytest.mark.parametrize("name", ["proxy.sock", "model.sock", "git.sock"])
async def test_a_request_whose_length_has_two_readings_is_refused(
    egress_setup: EgressSetup, name: str, framing: str
):
    line = {
        "proxy.sock": f"POST {egress_setup.far.url}/x",
        "model.sock": "POST /v1/messages",
        "git.sock": "POST /0/git-receive-pack",
    }[name]
    grant = UNRESTRICTED | {"origins": [repository(f"{egress_setup.far.url}/a")]}
    async with egress_setup.opened(**grant) as inside:
        head = f"{line} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()
        raw = await inside.raw(head + b"0\r\n\r\n", name)
    assert re.match(rb"HTTP/1.1 (400|501) ", raw), raw
    assert egress_setup.far.seen == []


async def test_chunks_of_an_old_version_are_refused(egress_setup: EgressSetup):
    async with egress_setup.opened(**UNRESTRICTED) as inside:
        head = (
            f"POST {egress_setup.far.url}/x HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        raw = await inside.raw(head + b"0\r\n\r\n", PROXY)
    assert raw.startswith(b"HTTP/1.1 400")
    assert egress_setup.far.seen == []


@pytest.mark.parametrize("name", ["proxy.sock", "model.sock", "git.sock"])
async def test_an_answer_with_two_lengths_goes_on_with_one(egress_setup: EgressSetup, name: str):
    """The chunks hold (RFC 9112, 6.3), and the other length is not passed on."""

    async def reply(seen: Seen, stream: ByteStream) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
        await stream.send(head + chunk(b"a whole answer") + chunk(b""))

    egress_setup.far.reply = reply
    body = b'{"model":"m"}'
    line = {
        "proxy.sock": f"POST {egress_setup.far.url}/x",
        "model.sock": "POST /v1/messages",
        "git.sock": "POST /0/git-receive-pack",
    }[name]
    grant = UNRESTRICTED | {"origins": [repository(f"{egress_setup.far.url}/a")]}
    async with egress_setup.opened(**grant) as inside:
        head = f"{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}"
        raw = await inside.raw(head.encode() + b"\r\n\r\n" + body, name)
    assert raw.startswith(b"HTTP/1.1 200")
    assert b"content-length" not in raw.lower()
    assert b"a whole answer" in raw
