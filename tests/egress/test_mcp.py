"""The proxy to an MCP server: the protocol passes as it is, with a token that stays outside."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from msgspec.structs import replace
from pydantic import AnyHttpUrl

from roost.egress.mcp import EndpointEvent
from roost.egress.options import EgressBounds
from roost.errors import CannotUnseal
from roost.ports.egress import Credential, Networking, Origin
from roost.serve.http import listening
from tests.egress.both_sides import (
    STREAM_HEAD,
    EgressSetup,
    Inside,
    Seen,
    answer,
    chunk,
    connect,
    streamed,
    unix_transport,
    until,
)
from tests.parts import need

TOKEN = "mcp-REAL-0123456789-abcdefghijklmnop"
ANY: dict[str, Any] = {"networking": Networking(kind="unrestricted")}


def server(url: str, credential: Credential | None = None, name: str = "docs") -> Origin:
    return Origin(url=url, protocol="mcp", name=name, restricted=True, credential=credential)


def with_token(egress_setup: EgressSetup, path: str = "/mcp") -> list[Origin]:
    return [server(f"{egress_setup.far.url}{path}", Credential.fixed(TOKEN, "bearer"))]


@asynccontextmanager
async def client_of(inside: Inside, index: int = 0) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """A client that finds the server at its address inside."""
    transport = unix_transport(inside.path(f"mcp-{index}.sock"))
    placeholder = {"authorization": "Bearer placeholder"}
    local = list(inside.opened.addresses.values())[index]
    async with httpx2.AsyncClient(
        transport=transport, base_url=local, headers=placeholder, timeout=30
    ) as client:
        yield client


async def test_the_token_is_put_on_outside_and_the_protocol_passes_as_it_is(
    egress_setup: EgressSetup,
):
    egress_setup.far.reply = answer(
        {}, mcp_session_id="s-1", www_authenticate="Bearer x", set_cookie="a=b"
    )
    origins = with_token(egress_setup, "/a/mcp/?region=eu")
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        local = inside.opened.addresses[origins[0].url]
        own = {
            "accept": "application/json, text/event-stream",
            "cookie": "a=b",
            "origin": "http://evil.example",
            "last-event-id": "7",
            "mcp-protocol-version": "2026-07-28",
            "mcp-param-unknown": "kept",
            "x-forwarded-host": "evil.example",
            "content-type": "application/json",
        }
        response = await client.post(local, headers=own, content=b'{"id": 1}')
        await client.delete(local, headers={"mcp-session-id": "s-1"})
        shown = str(inside.opened)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/a/mcp/\?region=eu", local)
    assert response.headers["mcp-session-id"] == "s-1"
    assert {"www-authenticate", "set-cookie"}.isdisjoint(response.headers)
    posted, deleted = egress_setup.far.seen
    assert (posted.method, posted.target, posted.body) == (
        "POST",
        "/a/mcp/?region=eu",
        b'{"id": 1}',
    )
    assert posted.header("authorization") == f"Bearer {TOKEN}"
    assert posted.header("host") == f"127.0.0.1:{egress_setup.far.port}"
    for name in ("accept", "last-event-id", "mcp-protocol-version", "mcp-param-unknown"):
        assert posted.header(name) == own[name]
    for name in ("cookie", "origin", "x-forwarded-host"):
        assert posted.header(name) is None
    assert (deleted.method, deleted.header("mcp-session-id")) == ("DELETE", "s-1")
    assert TOKEN not in shown


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /.well-known/oauth-protected-resource", 404),
        ("GET /.well-known/oauth-authorization-server/mcp", 404),
        ("POST /register", 404),
        ("GET /admin", 404),
        ("GET /mcp/../admin", 404),
        ("GET /mcp/sub", 404),
        ("GET /mcp%2f", 404),
        ("GET http://127.0.0.1/mcp", 404),
        ("PUT /mcp", 405),
        ("OPTIONS /mcp", 405),
    ],
)
async def test_nothing_else_of_the_host_is_reached(
    egress_setup: EgressSetup, line: str, status: int
):
    async with egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside:
        request = f"{line} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        answered = await inside.raw(request, "mcp-0.sock")
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"application/json" in answered
    assert b'"jsonrpc"' in answered
    assert egress_setup.far.seen == []


async def test_each_server_has_its_own_address_and_credential(egress_setup: EgressSetup):
    url = egress_setup.far.url
    origins = [
        server(f"{url}/a", Credential.fixed(TOKEN, "bearer"), "a"),
        server(f"{url}/b", None, "b"),
        server(f"{url}/a", None, "again"),
        server("http://[broken/", None, "broken"),
    ]
    async with egress_setup.opened(origins=origins, **ANY) as inside:
        assert list(inside.opened.addresses) == [f"{url}/a", f"{url}/b"]
        for index in range(2):
            async with client_of(inside, index) as client:
                await client.post("", content=b"{}")
    assert [seen.header("authorization") for seen in egress_setup.far.seen] == [
        f"Bearer {TOKEN}",
        None,
    ]


async def test_events_pass_as_they_come_and_a_token_in_them_is_taken_out(
    egress_setup: EgressSetup,
):
    go_on, parts = anyio.Event(), []

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(b"data: one\n\n"))
        await go_on.wait()
        await stream.send(chunk(b"data: " + TOKEN[:9].encode()))
        await stream.send(chunk(TOKEN[9:].encode() + b"\n\n"))
        await stream.send(b"0\r\nx-echo: " + TOKEN.encode() + b"\r\n\r\n")

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
        client.stream("POST", "", content=b"{}") as response,
    ):
        async for part in response.aiter_raw():
            parts.append(part)
            go_on.set()
    assert parts[0] == b"data: one\n\n"
    assert b"".join(parts[1:]) == b"data: " + b"*" * len(TOKEN) + b"\n\n"


async def test_a_token_that_was_replaced_meanwhile_is_taken_out_of_a_long_stream(
    egress_setup: EgressSetup,
):
    tokens, go_on = (
        ["the-first-token-of-the-server", "the-second-token-of-the-server"],
        anyio.Event(),
    )

    async def secret() -> str:
        return tokens[0]

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(b"data: one\n\n"))
        if seen.method == "GET":
            await go_on.wait()
            await stream.send(chunk(b"data: the-second-token-of-the-server\n\n"))
        await stream.send(b"0\r\n\r\n")

    egress_setup.far.reply = reply
    origins = [server(f"{egress_setup.far.url}/mcp", Credential(secret, "bearer"))]
    async with (
        egress_setup.opened(origins=origins, **ANY) as inside,
        client_of(inside) as client,
        client.stream("GET", "") as response,
    ):
        tokens.pop(0)
        await client.post("", content=b"{}")
        go_on.set()
        said = await response.aread()
    assert said.startswith(b"data: one\n\ndata: ***") and b"second" not in said


async def test_trailers_are_left_out_and_so_is_a_token_in_them(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        end = b"0\r\nx-echo: " + TOKEN.encode() + b"\r\n\r\n"
        await stream.send(STREAM_HEAD + chunk(b"data: one\n\n") + end)

    egress_setup.far.reply = reply
    request = b"POST /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    async with egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside:
        answered = await inside.raw(request, "mcp-0.sock")
    assert answered.endswith(b"data: one\n\n\r\n0\r\n\r\n")
    assert TOKEN.encode() not in answered


async def test_hanging_up_is_passed_on(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(b": hello\n\n"))
        await stream.receive()

    egress_setup.far.reply = reply
    async with egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside:
        stream = await connect(inside.path("mcp-0.sock"))
        await stream.send(b"GET /mcp HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" in await stream.receive()
        assert egress_setup.far.open == 1
        await stream.aclose()
        await until(lambda: egress_setup.far.open == 0)


async def test_the_address_that_an_older_server_names_is_found_inside(egress_setup: EgressSetup):
    url = egress_setup.far.url
    egress_setup.far.reply = streamed(
        b": ping\n\n", b"event: endpoint\nda", f"ta: {url}/messages?session=1\n\n".encode()
    )
    origins = with_token(egress_setup, "/sse")
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        local = inside.opened.addresses[origins[0].url]
        assert (await client.post("/messages?session=1")).status_code == 404
        said = (await client.get(local)).text
        there = local.removesuffix("/sse") + "/messages?session=1"
        assert said == f": ping\n\nevent: endpoint\ndata: {there}\n\n"
        egress_setup.far.reply = answer({}, 202)
        assert (await client.post(there, content=b"{}")).status_code == 202
    assert egress_setup.far.seen[-1].target == "/messages?session=1"
    assert egress_setup.far.seen[-1].header("authorization") == f"Bearer {TOKEN}"


@pytest.mark.parametrize("named", ["https://evil.example/messages", "//evil.example/m", "\xff"])
async def test_an_address_elsewhere_stays_as_it_is(egress_setup: EgressSetup, named: str):
    events = f"event: endpoint\ndata: {named}\n\n".encode("latin-1")
    egress_setup.far.reply = streamed(events)
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
    ):
        assert (await client.get("")).content == events
        assert (await client.post("/messages")).status_code == 404


async def test_of_the_paths_that_a_server_names_the_newest_can_be_reached(
    egress_setup: EgressSetup,
):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        number = int(seen.target.rpartition("/")[2].removeprefix("mcp") or 0) + 1
        await answer({}, 307, location=f"/mcp{number}")(seen, stream)

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
    ):
        root = next(iter(inside.opened.addresses.values())).removesuffix("/mcp")
        path = "/mcp"
        for number in range(1, 71):
            moved = await client.post(root + path, content=b"{}", follow_redirects=False)
            path = moved.headers["location"]
            assert path == f"/mcp{number}"
        status = {
            path: (await client.post(root + path, follow_redirects=False)).status_code
            for path in ("/mcp1", "/mcp6", "/mcp7", "/mcp70", "/mcp")
        }
    assert status == {"/mcp1": 404, "/mcp6": 404, "/mcp7": 307, "/mcp70": 307, "/mcp": 307}


@pytest.mark.parametrize("where", ["{url}/login?token={token}", "https://e.example/{token}"])
async def test_a_token_in_a_redirect_is_taken_out(egress_setup: EgressSetup, where: str):
    location = where.format(url=egress_setup.far.url, token=TOKEN)
    egress_setup.far.reply = answer({}, 307, location=location)
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
    ):
        moved = await client.post("", content=b"{}", follow_redirects=False)
    assert moved.status_code == 307 and TOKEN not in str(moved.headers)
    assert "*" * len(TOKEN) in moved.headers["location"]


async def test_a_redirect_leads_to_the_address_inside(egress_setup: EgressSetup):
    origins = with_token(egress_setup)
    egress_setup.far.reply = answer({}, 307, location=f"{egress_setup.far.url}/v2/mcp?x=1")
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        local = inside.opened.addresses[origins[0].url]
        moved = await client.post("", content=b"{}")
        assert moved.headers["location"] == local.removesuffix("/mcp") + "/v2/mcp?x=1"
        await client.post(moved.headers["location"], content=b"{}")
    assert egress_setup.far.seen[-1].target == "/v2/mcp?x=1"


async def test_without_isolation_a_server_is_on_the_hosts_loopback(egress_setup: EgressSetup):
    """For whoever has its address; and no rule holds, as none holds for what the agent asks by itself."""
    far = egress_setup.far
    far.reply = answer({}, 307, location="v2/mcp?x=1")
    origins = [replace(each, restricted=False) for each in with_token(egress_setup, "/mcp?a=b")]
    options = {"ports": frozenset((443,)), "allow_networks": ()}
    async with egress_setup.opened(options, origins=origins, on_host=True) as inside:
        local = httpx2.URL(inside.opened.addresses[origins[0].url])
        (found,) = [each for each in inside.opened.endpoints if "mcp" in each.socket]
        assert (found.port, found.is_open) == (local.port, True)
        async with httpx2.AsyncClient(timeout=30) as client:
            moved = await client.post(local, content=b"{}")
            await client.post(local.join(moved.headers["location"]), content=b"{}")
            guesses = ["/mcp", "/mcp?a=b", "/mcp?a=b&roost=", f"/mcp?a=b&roost={'0' * 32}"]
            for path in guesses:
                assert (await client.post(local.join(path), content=b"{}")).status_code == 404
    assert [seen.target for seen in far.seen] == ["/mcp?a=b", "/v2/mcp?x=1"]
    assert {seen.header("authorization") for seen in far.seen} == {f"Bearer {TOKEN}"}
    with pytest.raises(OSError, match="attempts failed"):
        await anyio.connect_tcp("127.0.0.1", local.port or 0)


async def test_other_users_of_the_host_are_hung_up_on(egress_setup: EgressSetup):
    need("root", os.geteuid() == 0, "root")
    ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], b'{}')"
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", ask]
    async with egress_setup.opened(origins=with_token(egress_setup), on_host=True) as inside:
        (local,) = inside.opened.addresses.values()
        done = await anyio.run_process([*as_nobody, local], check=False)
        hung_up = (b"RemoteDisconnected", b"ConnectionResetError")
        assert any(each in done.stderr for each in hung_up), done.stderr
        assert egress_setup.far.seen == []
        await anyio.run_process([*as_nobody[3:], local])
    assert len(egress_setup.far.seen) == 1


@pytest.mark.parametrize(
    ("networking", "changes", "reason"),
    [
        (Networking(), {}, "host_not_allowed"),
        (Networking(kind="limited", allowed_hosts=["a.example"]), {}, "host_not_allowed"),
        (Networking(kind="unrestricted"), {"ports": frozenset((443,))}, "port_not_allowed"),
        (Networking(kind="unrestricted"), {"allow_networks": ()}, "address_not_allowed"),
    ],
)
async def test_the_rules_of_the_way_out_hold(
    egress_setup: EgressSetup, networking: Networking, changes: dict[str, Any], reason: str
):
    origins = with_token(egress_setup)
    async with (
        egress_setup.opened(changes, origins=origins, networking=networking) as inside,
        client_of(inside) as client,
    ):
        assert (await client.post("", content=b"{}")).status_code == 403
    assert egress_setup.far.seen == []
    (refusal,) = egress_setup.refusals
    assert (refusal.reason, refusal.server) == (reason, "docs")


async def test_a_name_that_leads_to_an_address_inside_is_not_followed(egress_setup: EgressSetup):
    """Also for the model's own origin, if its address is a client's."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    origins = [server(f"http://rebound.example:{egress_setup.far.port}/mcp")]
    options = {"resolve": resolve, "allow_networks": ()}
    async with (
        egress_setup.opened(options, origins=origins, **ANY) as inside,
        client_of(inside) as client,
    ):
        assert (await client.get("")).status_code == 403
    assert egress_setup.far.seen == []


async def test_a_token_that_is_not_accepted_is_told_once_until_it_works(egress_setup: EgressSetup):
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
    ):
        for reply, status in ((answer({}, 401), 401), (answer({}), 200), (answer({}, 401), 401)):
            egress_setup.far.reply = reply
            for _ in range(3):
                assert (await client.post("", content=b"{}")).status_code == status
    told = [(each.reason, each.server) for each in egress_setup.refusals]
    assert told == [("credential_rejected", "docs")] * 2


class Renewed:
    """A token of which there is a new one once the old one was turned down."""

    def __init__(self) -> None:
        self.rejected: list[str] = []

    async def secret(self) -> str:
        return f"{TOKEN}-{len(self.rejected)}"

    async def replaced(self, secret: str) -> bool:
        self.rejected.append(secret)
        return True

    @property
    def credential(self) -> Credential:
        return Credential(self.secret, "bearer", self.replaced)


def accepting(*tokens: str) -> Any:
    async def reply(seen: Seen, stream: ByteStream) -> None:
        good = (seen.header("authorization") or "").removeprefix("Bearer ") in tokens
        await answer({}, 200 if good else 401)(seen, stream)

    return reply


async def test_a_request_is_sent_once_more_with_a_new_token(egress_setup: EgressSetup):
    tokens = Renewed()
    egress_setup.far.reply = accepting(f"{TOKEN}-1")
    origins = [server(f"{egress_setup.far.url}/mcp", tokens.credential)]
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        assert (await client.post("", content=b'{"id": 1}')).status_code == 200
        assert [seen.body for seen in egress_setup.far.seen] == [b'{"id": 1}'] * 2
        assert egress_setup.refusals == []
        egress_setup.far.reply = accepting()  # once, and not for ever
        assert (await client.post("", content=b"{}")).status_code == 401
    assert tokens.rejected == [f"{TOKEN}-0", f"{TOKEN}-1"]
    assert len(egress_setup.far.seen) == 4
    assert [each.reason for each in egress_setup.refusals] == ["credential_rejected"]


async def test_what_was_passed_on_as_it_came_is_not_sent_again(egress_setup: EgressSetup):
    tokens = Renewed()
    egress_setup.far.reply = accepting()
    origins = [server(f"{egress_setup.far.url}/mcp", tokens.credential)]
    large = b"x" * 300_000
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        assert (await client.post("", content=large)).status_code == 401
    assert [seen.body == large for seen in egress_setup.far.seen] == [True]


async def test_a_token_that_cannot_be_had_is_told_and_nothing_is_sent(egress_setup: EgressSetup):
    async def secret() -> str:
        raise CannotUnseal("sealed with another key")

    origins = [server(f"{egress_setup.far.url}/mcp", Credential(secret, "bearer"))]
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        for _ in range(2):
            response = await client.post("", content=b"{}")
            assert (response.status_code, "another key" in response.text) == (502, True)
    assert egress_setup.far.seen == []
    (told,) = egress_setup.refusals
    assert (told.reason, told.server, told.hint) == (
        "credential_unavailable",
        "docs",
        "sealed with another key",
    )


async def test_a_server_without_a_credential_is_asked_without(egress_setup: EgressSetup):
    async def none() -> None:
        return None

    origins = [server(f"{egress_setup.far.url}/mcp", Credential(none, "bearer"))]
    async with egress_setup.opened(origins=origins, **ANY) as inside, client_of(inside) as client:
        await client.post("", content=b"{}")
    assert egress_setup.far.seen[0].header("authorization") is None


async def test_a_large_request_is_not_held_in_memory(egress_setup: EgressSetup):
    size, piece = 24 * 1024**2, b"x" * 65536

    async def count(stream: SocketStream) -> None:
        got = 0
        async with stream:
            while got < size:
                got += len(await stream.receive())
            await stream.send(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    options = {"bounds": EgressBounds(), "ports": frozenset((port,))}
    origins = [server(f"http://127.0.0.1:{port}/mcp")]
    async with (
        listener,
        anyio.create_task_group() as tasks,
        egress_setup.opened(options, origins=origins, **ANY) as inside,
        await connect(inside.path("mcp-0.sock")) as stream,
    ):
        tasks.start_soon(listener.serve, count)
        tracemalloc.start()
        try:
            head = f"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
            await stream.send(head.encode())
            for _ in range(size // len(piece)):
                await stream.send(piece)
            assert b" 202 " in await stream.receive()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        tasks.cancel_scope.cancel()
    assert peak < 6 * 1024**2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_the_first_event_waits_to_be_complete(end: str):
    events = EndpointEvent(lambda address: address.upper())
    text = f"retry: 5{end}{end}event: endpoint{end}data: /m?a=b{end}{end}data: /m{end}{end}"
    passed = [events.feed(bytes([each])) for each in text.encode()] + [events.flush()]
    assert b"".join(passed) == text.replace("/m?a=b", "/M?A=B").encode()
    long = EndpointEvent(lambda address: address)
    assert long.feed(b"data: " + b"x" * 70_000) == b"data: " + b"x" * 70_000


# Real servers and clients


class Verifier:
    async def verify_token(self, token: str) -> AccessToken | None:
        good = token == TOKEN
        return AccessToken(token=token, client_id="c", scopes=[]) if good else None


def real_server() -> MCPServer:
    where = AnyHttpUrl("http://127.0.0.1:9")
    made = MCPServer(
        "docs",
        token_verifier=Verifier(),
        auth=AuthSettings(
            issuer_url=where, resource_server_url=where, validate_token_resource=False
        ),
    )

    @made.tool()
    def find(what: str) -> str:
        """Find something."""
        return f"found {what}"

    return made


@pytest.mark.parametrize(
    ("how", "mode"),
    [("json", "auto"), ("events", "legacy"), ("events", "2026-07-28"), ("stateless", "legacy")],
)
async def test_a_real_client_uses_a_real_server(egress_setup: EgressSetup, how: str, mode: str):
    app = real_server().streamable_http_app(
        json_response=how == "json", stateless_http=how == "stateless"
    )
    await found_through(egress_setup, app, "/mcp", mode)


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str, None]:
    async with app.router.lifespan_context(app), listening(app, "127.0.0.1", 0) as url:
        yield url


async def found_through(egress_setup: EgressSetup, app: Any, path: str, mode: str) -> None:
    async with served(app) as url:
        port = httpx2.URL(url).port
        options = {"ports": frozenset((port,))}
        origins = [server(f"{url}{path}", Credential.fixed(TOKEN, "bearer"))]
        async with (
            egress_setup.opened(options, origins=origins, **ANY) as inside,
            client_of(inside) as http,
        ):
            local = inside.opened.addresses[origins[0].url]
            transport = streamable_http_client(local, http_client=http)
            async with Client(transport, mode=mode) as client:
                result = await client.call_tool("find", {"what": "it"})
    assert "found it" in str(result.content)
    assert egress_setup.refusals == []


async def test_a_real_client_of_the_older_transport_uses_a_real_server(egress_setup: EgressSetup):
    async with served(real_server().sse_app()) as url:
        origins = [server(f"{url}/sse", Credential.fixed(TOKEN, "bearer"))]
        options = {"ports": frozenset((httpx2.URL(url).port,))}
        async with egress_setup.opened(options, origins=origins, **ANY) as inside:

            def factory(**options: Any) -> httpx2.AsyncClient:
                options = {key: value for key, value in options.items() if value is not None}
                return httpx2.AsyncClient(
                    transport=unix_transport(inside.path("mcp-0.sock")), **options
                )

            local = inside.opened.addresses[origins[0].url]
            transport = sse_client(local, httpx_client_factory=factory)
            async with Client(transport, mode="legacy") as client:
                result = await client.call_tool("find", {"what": "it"})
    assert "found it" in str(result.content)


async def test_a_cancelled_request_leaves_nothing_behind(egress_setup: EgressSetup):
    """Cut at any moment, the far side's connection ends, and the next request gets its own answer."""
    number = 0

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await anyio.sleep(0.002)
        await answer({"of": seen.body.decode()})(seen, stream)

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened(origins=with_token(egress_setup), **ANY) as inside,
        client_of(inside) as client,
    ):
        for wait in range(12):
            with anyio.move_on_after(wait / 1000), suppress(httpx2.TransportError):
                await client.post("", content=b"cut")
            number += 1
            whole = await client.post("", content=str(number).encode())
            assert whole.json() == {"of": str(number)}
    await until(lambda: egress_setup.far.open == 0)
