"""Requests in which a placeholder is replaced, through the proxy: real TLS on both sides."""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from roost.egress import dial, tls
from roost.egress.dial import Dialer
from roost.egress.host import HostEgress, serving
from roost.egress.intercept import MessageRedactor, opening
from roost.egress.model import HeldBytes
from roost.egress.network import NetworkProxy
from roost.egress.reports import Reports
from roost.egress.secrets import Forms
from roost.egress.substitution import SessionSubstitutions
from roost.egress.tls import CertificateAuthority, merged
from roost.egress.unix import UnixStream
from roost.ports.egress import Networking, Substitution
from roost.testing.cancelling import cancelled_at_each_step
from tests.egress.both_sides import (
    QUICK,
    EgressSetup,
    Far,
    Inside,
    Seen,
    answer,
    chunk,
    connect,
    read_request,
    rest,
    until,
)
from tests.egress.secured import (
    HOST,
    PLACEHOLDER,
    SECRET,
    Client,
    SecureFar,
    client,
    echo,
    kept,
    request,
    substitution,
    trusting,
)
from tests.egress.test_network import Names

UNRESTRICTED = Networking(kind="unrestricted")


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    """Stands for those that the whole world trusts."""
    return CertificateAuthority()


@pytest.fixture
async def far(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[SecureFar, None]:
    trusted = trusting(authority.certificate)
    trusted.set_alpn_protocols(["http/1.1"])
    monkeypatch.setattr(tls, "_upstream_context", lambda: trusted)
    async with SecureFar(authority).listening() as server:
        server.reply = echo
        yield server


def opened(setup: EgressSetup, *chosen: Any, **options: Any) -> Any:
    networking = options.pop("networking", UNRESTRICTED)
    options.setdefault("resolve", Names(["127.0.0.1"]))
    return setup.opened(options, networking=networking, substitutions=chosen or [substitution()])


def authority_of(far: Far, host: str = HOST) -> str:
    return f"{host}:{far.port}"


def to(far: Far, *headers: str, **how: Any) -> bytes:
    return request(*headers, **{"host": authority_of(far), **how})


ENCODED = b64encode(f"user:{SECRET}".encode()).decode()


async def test_the_server_gets_the_secret_and_the_sandbox_never_does(egress_setup: EgressSetup):
    far = egress_setup.far
    basic = b64encode(f"user:{PLACEHOLDER}".encode()).decode()
    headers = (f"authorization: Basic {basic}", f"x-key: {PLACEHOLDER}", "accept-encoding: gzip")
    body = json.dumps({"key": PLACEHOLDER}).encode()
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        found = await inner.ask(to(far, *headers, method="POST", body=body))
    seen = far.seen[0]
    assert seen.header("x-key") == SECRET
    assert seen.header("authorization") == f"Basic {ENCODED}"
    assert seen.body == body.replace(PLACEHOLDER.encode(), SECRET.encode())
    assert seen.header("content-length") == str(len(seen.body))
    assert seen.header("accept-encoding") == "identity"
    assert seen.header("host") == authority_of(far) and far.names == [HOST]
    assert found.status == 200 and SECRET.encode() not in found.body
    assert ENCODED.encode()[10:-4] not in found.body and b"x-key: ***" in found.body
    assert egress_setup.refusals == []


FORMS = [
    SECRET,
    quote(SECRET, safe=""),
    re.sub("%..", lambda found: found[0].lower(), quote(SECRET, safe="")),
    json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    b64encode(SECRET.encode()).decode().rstrip("="),
    urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    f"Basic {ENCODED}",
    f"Bearer {SECRET}",
]


@pytest.mark.parametrize("form", FORMS)
async def test_no_form_of_it_comes_back_wherever_it_is_cut(egress_setup: EgressSetup, form: str):
    far, text = egress_setup.far, f"before {form} after".encode()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        at = int(seen.target[1:])
        await stream.send(
            f"HTTP/1.1 200 OK\r\nx-echo: {form}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        await stream.send(chunk(text[:at]))
        await stream.send(chunk(text[at:]) + b"0\r\n\r\n")

    far.reply = reply
    # Nothing needs to be sent for it: the server may have had the secret from an earlier request.
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        for at in range(1, len(text), 5):
            found = await inner.ask(to(far, path=f"/{at}"))
            said = found.body + b" " + (found.header(b"x-echo") or b"")
            assert len(found.body) == len(text) and found.body.startswith(b"before ")
            assert said.count(b"*" * (len(SECRET) - 1)) >= 2 and form.encode() not in said
            assert SECRET.encode() not in said and ENCODED[10:-4].encode() not in said


async def test_a_placeholder_in_an_answer_stays_one(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(PLACEHOLDER.encode())
    async with opened(egress_setup) as inside, client(inside, egress_setup.far.port) as inner:
        assert (await inner.ask(to(egress_setup.far))).body == PLACEHOLDER.encode()


async def test_another_host_is_tunnelled_and_gets_the_placeholder(
    egress_setup: EgressSetup, authority: CertificateAuthority
):
    far = egress_setup.far
    async with (
        opened(egress_setup) as inside,
        client(inside, far.port, "other.example", ca=authority.certificate) as inner,
    ):
        await inner.ask(to(far, f"x-key: {PLACEHOLDER}", host="other.example"))
    assert far.seen[0].header("x-key") == PLACEHOLDER


async def test_a_place_that_is_switched_off_gets_the_placeholder(egress_setup: EgressSetup):
    far = egress_setup.far
    async with (
        opened(egress_setup, substitution(body=False)) as inside,
        client(inside, far.port) as inner,
    ):
        key = f"x-key: {PLACEHOLDER}"
        await inner.ask(to(far, key, method="POST", body=PLACEHOLDER.encode()))
        await inner.ask(to(far, path=f"/{PLACEHOLDER}?key={PLACEHOLDER}"))
    assert far.seen[0].header("x-key") == SECRET and far.seen[0].body == PLACEHOLDER.encode()
    assert far.seen[1].target == f"/{PLACEHOLDER}?key={PLACEHOLDER}"


@pytest.mark.parametrize(
    ("line", "host", "status"),
    [
        ("GET / HTTP/1.1", "other.example", 421),
        ("GET / HTTP/1.1", HOST, 421),  # without the port, which is not the usual one
        ("GET https://other.example/ HTTP/1.1", None, 421),
        ("GET http://api.example/ HTTP/1.1", None, 400),
        ("CONNECT other.example:443 HTTP/1.1", None, 405),
        ("GET x HTTP/1.1", None, 400),
        ("nonsense", None, 400),
    ],
)
async def test_a_request_for_another_host_is_not_sent(
    egress_setup: EgressSetup, line: str, host: str | None, status: int
):
    far = egress_setup.far
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        said = f"{line}\r\nhost: {host or authority_of(far)}\r\nx-key: {PLACEHOLDER}\r\n\r\n"
        await inner.stream.send(said.encode())
        assert (await inner.answer()).status == status
    assert far.seen == []


async def test_a_request_may_have_its_whole_address_in_it(egress_setup: EgressSetup):
    far = egress_setup.far
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        for path in (f"https://{authority_of(far).upper()}/x?y", f"HTTPS://{authority_of(far)}"):
            assert (await inner.ask(to(far, path=path))).status == 200
    assert [each.target for each in far.seen] == ["/x?y", "/"]


async def test_a_client_that_asks_for_another_name_is_refused(egress_setup: EgressSetup):
    far = egress_setup.far
    async with opened(egress_setup) as inside:
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            async with client(inside, far.port, name="other.example"):
                pass
    assert far.names == [] and far.connections == 0
    assert [each.reason for each in egress_setup.refusals] == ["server_name_not_allowed"]


async def test_a_client_without_a_name_is_served(egress_setup: EgressSetup):
    far = egress_setup.far
    async with opened(egress_setup) as inside:
        file = inside.opened.mounts[0].source
        context = trusting(file.read_bytes())
        context.check_hostname = False
        async with inside.tunnel(HOST, far.port) as stream:
            secured = await TLSStream.wrap(
                stream, server_side=False, ssl_context=context, standard_compatible=False
            )
            found = await Client(secured).ask(to(far, f"x-key: {PLACEHOLDER}"))
    assert found.status == 200 and far.seen[0].header("x-key") == SECRET


async def test_a_client_of_http_2_only_is_tunnelled_and_told_of_once(
    egress_setup: EgressSetup, authority: CertificateAuthority
):
    far = egress_setup.far
    async with opened(egress_setup) as inside:
        for _ in range(2):
            context = trusting(authority.certificate)
            context.set_alpn_protocols(["h2"])
            async with inside.tunnel(HOST, far.port) as stream:
                await TLSStream.wrap(
                    stream, hostname=HOST, ssl_context=context, standard_compatible=False
                )
    assert [each.reason for each in egress_setup.refusals] == ["placeholder_not_replaced"]
    assert "HTTP/2" in egress_setup.refusals[0].hint


async def test_a_client_that_does_not_trust_the_certificate_is_told_of_once(
    egress_setup: EgressSetup, authority: CertificateAuthority
):
    far = egress_setup.far

    def ask(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(60)
            raw.connect(path)
            raw.sendall(f"CONNECT {HOST}:{far.port} HTTP/1.0\r\n\r\n".encode())
            raw.recv(1000)
            trusting(authority.certificate).wrap_socket(raw, server_hostname=HOST)

    async with opened(egress_setup) as inside:
        for _ in range(2):
            with pytest.raises(ssl.SSLCertVerificationError):
                await anyio.to_thread.run_sync(ask, inside.path("proxy.sock"))
        await until(lambda: bool(egress_setup.refusals))
    assert [each.reason for each in egress_setup.refusals] == ["placeholder_not_replaced"]
    assert "/run/roost/ca.pem" in egress_setup.refusals[0].hint


async def test_a_server_that_nobody_vouches_for_gets_nothing(
    egress_setup: EgressSetup, monkeypatch: pytest.MonkeyPatch
):
    other = trusting(CertificateAuthority().certificate)
    monkeypatch.setattr(tls, "_upstream_context", lambda: other)
    far = egress_setup.far
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        found = await inner.ask(to(far, f"x-key: {PLACEHOLDER}"))
    assert found.status == 502 and b"certificate of api.example is not accepted" in found.body
    assert far.seen == []


async def test_a_server_that_speaks_no_tls_gets_nothing(egress_setup: EgressSetup):
    async def rude(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 No\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, rude)
        async with (
            opened(egress_setup, ports=frozenset([port])) as inside,
            client(inside, port) as inner,
        ):
            found = await inner.ask(request(host=f"{HOST}:{port}"))
        tasks.cancel_scope.cancel()
    assert found.status == 502 and b"does not answer with TLS" in found.body


async def test_requests_share_a_connection_and_a_new_secret_is_used_at_once(
    egress_setup: EgressSetup,
):
    far, values = egress_setup.far, ["the-first-secret-value", "the-second-secret-value"]

    async def secret() -> str:
        return values[0]

    key = f"x-key: {PLACEHOLDER}"
    async with (
        opened(egress_setup, substitution(secret=secret)) as inside,
        client(inside, far.port) as inner,
    ):
        await inner.ask(to(far, key))
        values.pop(0)
        await inner.ask(to(far, key))
        values[0] = ""  # archived
        await inner.ask(to(far, key))
    given = [each.header("x-key") for each in far.seen]
    assert given == ["the-first-secret-value", "the-second-secret-value", PLACEHOLDER]
    assert far.connections == 1


@pytest.mark.parametrize("at", [1, 6, 20, 37])
async def test_a_body_in_chunks_is_replaced_wherever_it_is_cut(egress_setup: EgressSetup, at: int):
    far, text = egress_setup.far, f"x{PLACEHOLDER}y".encode()
    head = to(far, "transfer-encoding: chunked", method="PUT")
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.stream.send(head + chunk(text[:at]))
        await anyio.sleep(0.02)
        await inner.stream.send(chunk(text[at:]) + b"0\r\n\r\n")
        await inner.answer()
    assert far.seen[0].body == f"x{SECRET}y".encode()
    assert far.seen[0].header("transfer-encoding") == "chunked"


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_secret_in_json_and_in_forms_is_escaped(egress_setup: EgressSetup, is_cut: bool):
    far, secret = egress_setup.far, 'a "quoted" \\ one & more + é'
    bodies = {
        "application/json": json.dumps({"key": PLACEHOLDER}).encode(),
        "application/x-www-form-urlencoded": f"key={PLACEHOLDER}".encode(),
    }
    async with opened(egress_setup, substitution(secret=kept(secret))) as inside:
        for kind, body in bodies.items():
            async with client(inside, far.port) as inner:
                headers = [f"content-type: {kind}"]
                if is_cut:
                    headers.append("transfer-encoding: chunked")
                    body = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"
                await inner.ask(to(far, *headers, method="POST", body=body))
    first, second = far.seen
    assert json.loads(first.body) == {"key": secret}
    assert parse_qs(second.body.decode()) == {"key": [secret]}


async def test_a_body_that_is_too_large_to_hold_goes_in_chunks(egress_setup: EgressSetup):
    far = egress_setup.far
    body = b"." * 70_000 + PLACEHOLDER.encode() + b"." * 70_000
    bounds = type(QUICK)(replaced_bytes=100_000, idle_seconds=5)
    far.reply = answer(b"ok")
    async with opened(egress_setup, bounds=bounds) as inside, client(inside, far.port) as inner:
        await inner.ask(to(far, method="POST", body=body))
        await inner.ask(to(far, method="POST", body=body[60_000:-60_000]))
    first, second = far.seen
    assert first.body == body.replace(PLACEHOLDER.encode(), SECRET.encode())
    assert first.header("content-length") is None and second.header("content-length") is not None
    assert second.body == first.body[60_000:-60_000]


@pytest.mark.parametrize("where", ["a header", "a body", "a body in chunks", "a large body"])
async def test_what_placeholders_grow_to_has_a_bound(egress_setup: EgressSetup, where: str):
    far, large = egress_setup.far, "s" * 32_000
    many = PLACEHOLDER * 200
    asked = {
        "a header": to(far, f"x-key: {many}"),
        "a body": to(far, method="POST", body=many.encode()),
        "a body in chunks": to(far, "transfer-encoding: chunked", method="POST")
        + chunk(many.encode()),
        "a large body": to(far, method="POST", body=b"." * 5000 + many.encode()),
    }[where]
    bounds = type(QUICK)(replaced_bytes=10_000, idle_seconds=5, linger_seconds=0.2)
    async with (
        opened(egress_setup, substitution(secret=kept(large)), bounds=bounds) as inside,
        client(inside, far.port) as inner,
    ):
        found = await inner.ask(asked)
    assert found.status == 413 and b"can be put in for placeholders" in found.body
    assert far.seen == []


async def test_what_a_held_body_grows_by_is_held(egress_setup: EgressSetup):
    far, large = egress_setup.far, "s" * 32_000
    bounds = type(QUICK)(held_bytes=100_000, linger_seconds=0.2)
    async with (
        opened(egress_setup, substitution(secret=kept(large)), bounds=bounds) as inside,
        client(inside, far.port) as inner,
    ):
        assert (
            await inner.ask(to(far, method="POST", body=PLACEHOLDER.encode() * 3))
        ).status == 200
        found = await inner.ask(to(far, method="POST", body=PLACEHOLDER.encode() * 4))
    assert found.status == 429 and len(far.seen) == 1


async def test_a_body_that_is_only_announced_is_not_held(egress_setup: EgressSetup):
    far = egress_setup.far
    bounds = type(QUICK)(held_bytes=10_000)
    async with (
        opened(egress_setup, bounds=bounds) as inside,
        client(inside, far.port) as slow,
        client(inside, far.port) as inner,
    ):
        await slow.stream.send(to(far, "content-length: 9000", method="POST"))
        await anyio.sleep(0.05)
        found = await inner.ask(to(far, method="POST", body=b"." * 9000))
        assert found.status == 200
        await slow.stream.send(b"." * 9000)
        assert (await slow.answer()).status == 200


async def test_a_compressed_body_is_passed_on_as_it_is(
    egress_setup: EgressSetup, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    far, body = egress_setup.far, gzip.compress(PLACEHOLDER.encode()) + PLACEHOLDER.encode()
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.ask(to(far, "content-encoding: gzip", method="POST", body=body))
    assert far.seen[0].body == body and far.seen[0].header("content-length") == str(len(body))
    assert "the body is compressed" in caplog.text


async def test_a_compressed_answer_is_decoded_to_be_looked_at(egress_setup: EgressSetup):
    far = egress_setup.far
    far.reply = answer(gzip.compress(f"<{SECRET}>".encode()), content_encoding="gzip")
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        found = await inner.ask(to(far))
        assert found.body == b"<" + b"*" * len(SECRET) + b">"
        assert found.header(b"content-encoding") is None
        far.reply = answer(b"no gzip at all", content_encoding="gzip")
        with pytest.raises(Exception):  # noqa: B017 - cut off, in one of several ways
            await inner.ask(to(far))


@pytest.mark.parametrize(
    ("encoding", "status"), [("br", 200), ("zstd", 200), ("gzip, x-odd", 200), ("gzip", 206)]
)
async def test_an_answer_that_cannot_be_searched_is_not_passed_on(
    egress_setup: EgressSetup, encoding: str, status: int
):
    far = egress_setup.far
    far.reply = answer(SECRET.encode(), status, content_encoding=encoding)
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        found = await inner.ask(to(far))
    assert found.status == 502 and b"cannot be searched for secrets" in found.body
    assert SECRET.encode() not in found.body


async def test_an_answer_without_a_body_may_say_any_encoding(egress_setup: EgressSetup):
    far = egress_setup.far

    async def reply(seen: Seen, stream: ByteStream) -> None:
        size = b"5" if seen.method == "HEAD" else b"0"
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: %s\r\n\r\n" % size
        )

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        assert (await inner.ask(to(far, method="HEAD"))).status == 200
        assert (await inner.ask(to(far))).status == 200


@pytest.mark.parametrize("method", ["HEAD", "GET", "DELETE", "OPTIONS"])
async def test_requests_without_a_body_keep_the_connection(egress_setup: EgressSetup, method: str):
    far = egress_setup.far

    async def reply(seen: Seen, stream: ByteStream) -> None:
        body = b"" if seen.method == "HEAD" else b"12345"
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + body)

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        for _ in range(2):
            found = await inner.ask(to(far, method=method, path="/x"))
            assert found.status == 200 and found.header(b"content-length") == b"5"
    assert far.connections == 1 and far.seen[0].header("content-length") is None


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(egress_setup: EgressSetup):
    far = egress_setup.far
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        head = f"expect: 100-continue\r\ncontent-length: {len(PLACEHOLDER)}"
        await inner.stream.send(to(far, head, method="POST"))
        assert (await inner.stream.receive()).startswith(b"HTTP/1.1 100")
        await inner.stream.send(PLACEHOLDER.encode())
        assert (await inner.answer()).status == 200
    assert far.seen[0].body == SECRET.encode() and far.seen[0].header("expect") is None


async def test_events_are_not_held_up(egress_setup: EgressSetup):
    far, more = egress_setup.far, anyio.Event()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        await stream.send(head + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"data: 1\n\n"))
        await more.wait()
        await stream.send(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.stream.send(to(far))
        received = b""
        with anyio.fail_after(60):
            while b"data: 1\n\n" not in received:
                received += await inner.stream.receive()
            more.set()
            while b"data: 2\n\n" not in received:
                received += await inner.stream.receive()


async def test_an_answer_may_come_before_the_request_is_complete(egress_setup: EgressSetup):
    far = egress_setup.far

    async def talk(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(
                b"HTTP/1.1 413 No\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
            )
            await anyio.sleep(1)

    far._talk = talk  # type: ignore[method-assign,assignment]
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.stream.send(to(far, "transfer-encoding: chunked", method="POST") + chunk(b"x"))
        found = await inner.answer()
    assert (found.status, found.body) == (413, b"no") and found.header(b"connection") == b"close"


async def test_a_client_that_hangs_up_ends_the_request(egress_setup: EgressSetup):
    far, begun = egress_setup.far, anyio.Event()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        begun.set()
        await read_request(stream)
        raise anyio.EndOfStream

    far.reply = reply
    async with opened(egress_setup) as inside:
        async with client(inside, far.port) as inner:
            await inner.stream.send(to(far))
            with anyio.fail_after(60):
                await begun.wait()
        await until(lambda: far.open == 0)


async def test_a_server_that_hangs_up_ends_the_connection(egress_setup: EgressSetup):
    far = egress_setup.far

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await echo(seen, stream)
        raise anyio.EndOfStream

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        assert (await inner.ask(to(far))).status == 200
        with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await inner.stream.receive()


async def test_a_server_that_ends_without_an_answer_is_told_of(egress_setup: EgressSetup):
    far = egress_setup.far

    async def reply(seen: Seen, stream: ByteStream) -> None:
        raise anyio.EndOfStream

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        found = await inner.ask(to(far))
    assert found.status == 502 and b"did not answer with HTTP" in found.body


async def test_an_unasked_answer_is_nobodys(egress_setup: EgressSetup):
    far = egress_setup.far
    once = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(once + b"a" + once + b"b")

    far.reply = reply
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        assert (await inner.ask(to(far))).body == b"a"
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await inner.stream.send(to(far))
            await inner.stream.receive()


async def test_a_websocket_gets_its_secret_and_then_raw_bytes(egress_setup: EgressSetup):
    far = egress_setup.far

    async def reply(seen: Seen, stream: ByteStream) -> None:
        head = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        await stream.send(head + b"sec-websocket-accept: x\r\n\r\nhello")
        while True:
            await stream.send((await stream.receive()).upper())

    far.reply = reply
    asked = ("connection: Upgrade", "upgrade: websocket", f"authorization: Bearer {PLACEHOLDER}")
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.stream.send(to(far, *asked))
        received = b""
        while not received.endswith(b"hello"):
            received += await inner.stream.receive()
        assert received.startswith(b"HTTP/1.1 101") and b"upgrade: websocket" in received
        for text in (b"one", PLACEHOLDER.encode()):
            await inner.stream.send(text)
            assert await inner.stream.receive() == text.upper()
    seen = far.seen[0]
    assert (seen.header("upgrade"), seen.header("authorization")) == (
        "websocket",
        f"Bearer {SECRET}",
    )


async def test_what_a_websocket_says_is_searched_and_not_held_up(egress_setup: EgressSetup):
    far, secret = egress_setup.far, SECRET.encode()
    ends_alike = b"\x81\x07data" + secret[:3]

    async def reply(seen: Seen, stream: ByteStream) -> None:
        head = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        await stream.send(head + b"sec-websocket-accept: x\r\n\r\n\x81\x21" + secret[:10])
        await stream.send(secret[10:])
        await stream.receive()
        await stream.send(ends_alike)
        await stream.receive()

    far.reply = reply
    asked = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-extensions: x")
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        await inner.stream.send(to(far, *asked, f"authorization: Bearer {PLACEHOLDER}"))
        received = b""
        with anyio.fail_after(60):
            while b"\x81\x21" + b"*" * len(secret) not in received:
                received += await inner.stream.receive()
            await inner.stream.send(b"more")
            while not received.endswith(ends_alike):  # nothing comes after it
                received += await inner.stream.receive()
    assert secret not in received and far.seen[0].header("sec-websocket-extensions") is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 200_000])
def test_frames_are_searched_wherever_they_are_cut(size: int):
    secret, many = SECRET.encode(), SECRET.encode() * 2000
    messages = [b"", b"hello" + secret, secret[:5], secret * 5, b"end"]
    messages += [many, b"end"] if size >= 1000 else []
    frames = [
        b"\x81" + bytes([len(each)]) + each
        if len(each) < 126
        else b"\x02\x7e" + len(each).to_bytes(2) + each
        if len(each) < 65536
        else b"\x82\x7f" + len(each).to_bytes(8) + each
        for each in messages
    ]
    redactor = MessageRedactor(lambda: Forms([secret]))
    said = b"".join(frames)
    out = b"".join(redactor.feed(said[at : at + size]) for at in range(0, len(said), size))
    assert out == said.replace(secret, b"*" * len(secret))


async def test_a_server_may_refuse_to_switch(egress_setup: EgressSetup):
    far = egress_setup.far
    asked = ("connection: Upgrade", "upgrade: websocket")
    async with opened(egress_setup) as inside, client(inside, far.port) as inner:
        assert (await inner.ask(to(far, *asked))).status == 200
        assert (await inner.ask(to(far, "connection: upgrade", "upgrade: h2c"))).status == 200
    assert [each.header("upgrade") for each in far.seen] == ["websocket", None]


async def test_what_does_not_begin_with_tls_is_tunnelled(egress_setup: EgressSetup):
    async with Far().listening() as plain:
        plain.reply = echo
        async with (
            opened(egress_setup, ports=frozenset([plain.port])) as inside,
            inside.tunnel(HOST, plain.port) as stream,
        ):
            found = await Client(stream).ask(request(f"x-key: {PLACEHOLDER}", host="x"))
    assert found.status == 200 and plain.seen[0].header("x-key") == PLACEHOLDER


async def test_a_server_that_speaks_first_is_heard_at_once(egress_setup: EgressSetup):
    async def greet(stream: ByteStream) -> None:
        async with stream:
            await stream.send(b"220 ready\r\n")
            await stream.send((await stream.receive()).upper())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, greet)
        async with (
            opened(egress_setup, ports=frozenset([port])) as inside,
            inside.tunnel(HOST, port) as stream,
        ):
            assert await stream.receive() == b"220 ready\r\n"
            await stream.send(b"quit")
            assert await stream.receive() == b"QUIT"
        tasks.cancel_scope.cancel()


async def test_a_server_that_resets_before_anybody_speaks_is_no_trouble(
    egress_setup: EgressSetup, caplog: pytest.LogCaptureFixture
):
    async def reset(stream: SocketStream) -> None:
        raw = stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await anyio.sleep(0.05)  # until the client listens
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, reset)
        async with (
            opened(egress_setup, ports=frozenset([port])) as inside,
            inside.tunnel(HOST, port) as stream,
        ):
            assert await rest(stream) == b""
        tasks.cancel_scope.cancel()
    assert caplog.records == []


async def test_what_a_server_says_beside_the_first_words_of_a_client_is_kept():
    both = [anyio.Event(), anyio.Event()]

    class Together:
        """Says something at the very moment that the other one does."""

        def __init__(self, number: int, said: bytes) -> None:
            self._number, self._said = number, said

        async def receive(self, _: int) -> bytes:
            if not self._said:
                raise anyio.EndOfStream
            both[self._number].set()
            with anyio.CancelScope(shield=True):
                await both[1 - self._number].wait()
            said, self._said = self._said, b""
            return said

    near, far = Together(0, b"\x16\x03\x01\x00\x05hello"), Together(1, b"220 ready\r\n")
    begun = await opening(near, far, b"", QUICK)  # type: ignore[arg-type]
    assert begun.near.startswith(b"\x16\x03\x01") and begun.far == b"220 ready\r\n"


@pytest.mark.parametrize("is_named", [True, False])
async def test_in_plain_http_only_networks_of_the_operator_get_secrets(
    egress_setup: EgressSetup, monkeypatch: pytest.MonkeyPatch, is_named: bool
):
    options: dict[str, Any] = {}
    if not is_named:
        monkeypatch.setattr(dial, "public", lambda address: True)
        options["allow_networks"] = ()
    async with Far().listening() as plain:
        plain.reply = echo
        options["ports"] = frozenset([plain.port])
        async with (
            opened(egress_setup, **options) as inside,
            await connect(inside.path("proxy.sock")) as stream,
        ):
            said = to(plain, f"x-key: {PLACEHOLDER}", path=f"http://{authority_of(plain)}/")
            found = await Client(stream).ask(said)
    assert plain.seen[0].header("x-key") == (SECRET if is_named else PLACEHOLDER)
    assert SECRET.encode() not in found.body and (PLACEHOLDER.encode() in found.body) != is_named


async def test_under_limits_the_same_rules_come_first(egress_setup: EgressSetup):
    far = egress_setup.far
    networking = Networking(kind="limited", allowed_hosts=[HOST])
    chosen = substitution(hosts=None)
    async with opened(egress_setup, chosen, networking=networking) as inside:
        async with client(inside, far.port) as inner:
            await inner.ask(to(far, f"x-key: {PLACEHOLDER}"))
        async with await connect(inside.path("proxy.sock")) as stream:
            await stream.send(f"CONNECT b.example:{far.port} HTTP/1.0\r\n\r\n".encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 403")
    assert far.seen[0].header("x-key") == SECRET
    assert [each.reason for each in egress_setup.refusals] == ["host_not_allowed"]


# What a sandbox is given


async def test_without_a_secret_nothing_is_set(egress_setup: EgressSetup):
    async with egress_setup.opened(networking=UNRESTRICTED) as inside:
        assert not inside.opened.mounts and inside.opened.certificates is None
        assert not any("CERT" in name or "_CA" in name for name in inside.opened.environ)


async def test_a_sandbox_is_given_placeholders_and_what_to_trust(egress_setup: EgressSetup):
    async with opened(egress_setup) as inside:
        found = inside.opened
        assert found.environ["API_KEY"] == PLACEHOLDER
        assert found.environ["NODE_EXTRA_CA_CERTS"] == "/run/roost/ca.pem"
        assert found.environ["SSL_CERT_FILE"] == "/run/roost/ca-bundle.pem"
        files = {each.target: each.source for each in found.mounts}
        own = files["/run/roost/ca.pem"].read_bytes()
        together = files["/run/roost/ca-bundle.pem"].read_bytes()
        assert own.count(b"BEGIN CERTIFICATE") == 1 and together.endswith(own)
        assert found.certificates == files["/run/roost/ca-bundle.pem"]
        assert b"PRIVATE" not in together and SECRET.encode() not in together
        assert not any(each.writable for each in found.mounts)
        assert all(each.stat().st_mode & 0o777 == 0o644 for each in files.values())
    assert not list(egress_setup.directory.iterdir())


async def test_without_a_network_there_are_only_placeholders(egress_setup: EgressSetup):
    async with opened(egress_setup, networking=Networking()) as inside:
        assert inside.opened.environ["API_KEY"] == PLACEHOLDER and not inside.opened.mounts
        assert inside.opened.unreachable == {"API_KEY": [HOST]}


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "HTTPS_PROXY", "no_proxy", "ANTHROPIC_API_KEY", "SSL_CERT_FILE"]
)
async def test_names_with_another_meaning_are_left_out(egress_setup: EgressSetup, name: str):
    other = substitution(variable="OTHER", placeholder="roost_" + "1" * 32)
    async with opened(egress_setup, substitution(variable=name), other) as inside:
        assert inside.opened.left_out == [name]
        assert PLACEHOLDER not in inside.opened.environ.values()
        assert inside.opened.environ["OTHER"] == other.placeholder


def test_the_list_of_certificates_may_be_missing(tmp_path: Path):
    (tmp_path / "system.pem").write_bytes(b"system\n\n")
    assert merged(b"own", (str(tmp_path / "none"),)) == b"own"
    both = (str(tmp_path / "none"), str(tmp_path / "system.pem"))
    assert merged(b"own", both) == b"system\nown"


def test_no_two_authorities_are_alike():
    first, second = CertificateAuthority(), CertificateAuthority()
    assert first.certificate != second.certificate
    assert first.context("a.example") is first.context("a.example")
    for index in range(100):
        first.context(f"{index}.example")
    assert len(first._contexts) <= 64


# Whatever is cut off, nothing of one session reaches another


async def test_a_request_that_is_cut_off_anywhere_leaves_nothing_behind(
    egress_setup: EgressSetup,
):
    far = egress_setup.far
    options = egress_setup.options(resolve=Names(["127.0.0.1"]))
    substitutions = SessionSubstitutions("sesn_a", [substitution()], 1)
    grant = egress_setup.grant(session_id="sesn_a")
    proxy = NetworkProxy(
        UNRESTRICTED,
        Dialer(options.resolve, options.allow_networks, 2),
        Reports(grant, 1),
        options,
        substitutions,
        held := HeldBytes(1_000_000),
    )
    context = trusting(substitutions.authority.certificate)
    body = f"{PLACEHOLDER} of session a".encode()

    async def ask(near: ByteStream) -> None:
        try:
            async with near:
                await near.send(f"CONNECT {HOST}:{far.port} HTTP/1.0\r\n\r\n".encode())
                await near.receive()
                secured = await TLSStream.wrap(
                    near, hostname=HOST, ssl_context=context, standard_compatible=False
                )
                inner = Client(secured)
                await inner.ask(to(far, f"x-key: {PLACEHOLDER}", method="POST", body=body))
                await inner.ask(to(far))
        except (OSError, RuntimeError, anyio.BrokenResourceError, anyio.EndOfStream):
            pass
        except Exception as error:  # noqa: BLE001 - h11's: the answer was cut off
            assert type(error).__module__.startswith("h11"), error

    other = substitution(secret=kept("the-secret-of-session-b"))
    async with (
        serving(options) as egress,
        _opened_as(egress, egress_setup, "sesn_b", other) as inside,
        client(inside, far.port) as beside,
        anyio.create_task_group() as tasks,
    ):

        async def work() -> None:
            ours, theirs = socket.socketpair()
            tasks.start_soon(ask, UnixStream(theirs))
            async with UnixStream(ours) as stream:
                await proxy.serve(stream)

        async for step in cancelled_at_each_step(work):
            await until(lambda: far.open <= 1)
            found = await beside.ask(to(far, f"x-key: {PLACEHOLDER}"))
            assert far.seen[-1].header("x-key") == "the-secret-of-session-b", step
            assert b"session a" not in found.body and b"x-key: ***" in found.body, step
            assert held._taken == 0, step
        assert step > 10
        await until(lambda: far.open == 1)


@asynccontextmanager
async def _opened_as(
    egress: HostEgress, setup: EgressSetup, session_id: str, *chosen: Substitution
) -> AsyncGenerator[Inside, None]:
    grant = setup.grant(session_id=session_id, networking=UNRESTRICTED, substitutions=chosen)
    async with egress.open(grant) as found:
        yield Inside(found, egress)
