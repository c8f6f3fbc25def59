"""The road to a session's repositories: git's own requests pass, with a token that stays outside."""

from __future__ import annotations

import re
import socket
import tracemalloc
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import httpx2
import msgspec
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from roost.egress.options import EgressBounds
from roost.ports.egress import Origin
from tests.egress.both_sides import (
    QUICK,
    EgressSetup,
    Inside,
    Seen,
    answer,
    chunk,
    connect,
    repository,
    unix_transport,
    until,
)

TOKEN = "ghp_REAL-0123456789-abcdefghijklmnop"
REFS = "/info/refs?service=git-upload-pack"


@asynccontextmanager
async def git(inside: Inside) -> AsyncGenerator[httpx2.AsyncClient, None]:
    transport = unix_transport(inside.path("git.sock"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def repositories(egress_setup: EgressSetup) -> list[Origin]:
    return [
        repository(f"{egress_setup.far.url}/a/private.git", TOKEN),
        repository(f"{egress_setup.far.url}/b/public"),
    ]


async def test_the_token_is_put_on_outside_and_only_for_its_repository(egress_setup: EgressSetup):
    async with (
        egress_setup.opened(origins=repositories(egress_setup)) as inside,
        git(inside) as client,
    ):
        own = {"authorization": "Basic bWU6bWU=", "cookie": "a=b", "git-protocol": "version=2"}
        assert (await client.get(f"/0{REFS}", headers=own)).status_code == 200
        await client.post("/1.git/git-receive-pack", content=b"pushed")
        environ = str(dict(inside.opened.environ)) + str(inside.opened)
    private, public = egress_setup.far.seen
    assert private.target == f"/a/private.git{REFS}"
    scheme, _, word = (private.header("authorization") or "").partition(" ")
    assert (scheme, b64decode(word).decode()) == ("Basic", f"x-access-token:{TOKEN}")
    assert private.header("git-protocol") == "version=2"
    assert private.header("cookie") is None
    assert (public.target, public.body) == ("/b/public/git-receive-pack", b"pushed")
    assert public.header("authorization") is None
    assert TOKEN not in environ
    assert TOKEN not in repr(repositories(egress_setup))


@pytest.mark.parametrize(
    "url", ["https://a.example:port/x", "https://a\tb.example/x", "https://999.1.1.1/x"]
)
async def test_a_repository_with_a_malformed_address_does_not_stop_the_others(
    egress_setup: EgressSetup, url: str
):
    """It is refused when it is given; one that is stored all the same is said to be malformed."""
    both = [repository(url, TOKEN), *repositories(egress_setup)]
    async with egress_setup.opened(origins=both) as inside, git(inside) as client:
        refused = await client.get(f"/0{REFS}")
        assert (refused.status_code, "malformed" in refused.text) == (404, True)
        assert (await client.get(f"/1{REFS}")).status_code == 200


@pytest.mark.parametrize(
    "line",
    [
        f"GET /2{REFS}",
        "GET /0/info/refs",
        "GET /0/info/refs?service=git-upload-archive",
        f"GET /0/../b{REFS}",
        f"GET /0/settings/keys{REFS}",
        "GET /0/HEAD",
        "DELETE /0/git-receive-pack",
        "POST /0/git-upload-pack?service=x",
        "GET http://example.com/0/HEAD",
        f"GET //0{REFS}",
        f"GET /0{REFS}&x=y",
    ],
)
async def test_nothing_else_of_the_host_is_reached(egress_setup: EgressSetup, line: str):
    async with egress_setup.opened(origins=repositories(egress_setup)) as inside:
        request = f"{line} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        assert b" 404 " in (await inside.raw(request, "git.sock")).split(b"\r\n")[0]
    assert egress_setup.far.seen == []


async def test_an_answer_that_quotes_the_token_is_passed_on_without_it(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(f"bad token {TOKEN}".encode(), 403, x_seen=TOKEN)
    async with (
        egress_setup.opened(origins=repositories(egress_setup)) as inside,
        git(inside) as client,
    ):
        response = await client.get(f"/0{REFS}")
    assert response.status_code == 403
    assert TOKEN not in response.text + str(response.headers)


async def test_an_answer_that_quotes_the_header_is_passed_on_without_the_token(
    egress_setup: EgressSetup,
):
    """What is sent is the token in base64: a server that repeats it would hand the token over."""

    async def reply(seen: Seen, stream: ByteStream) -> None:
        sent = str(seen.header("authorization"))
        data = f"who is {sent}, or {sent.partition(' ')[2]}?".encode()
        head = f"HTTP/1.1 403 No\r\nx-echo: {sent}\r\ntransfer-encoding: chunked\r\n\r\n"
        await stream.send(head.encode())
        for start in range(0, len(data), 7):
            await stream.send(chunk(data[start : start + 7]))
        await stream.send(chunk(b""))

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened(origins=repositories(egress_setup)) as inside,
        git(inside) as client,
    ):
        response = await client.get(f"/0{REFS}")
    received = response.text + str(response.headers)
    assert response.text.startswith("who is ")
    for word in re.findall(r"[A-Za-z0-9+/]{16,}", received):
        assert TOKEN.encode()[:8] not in b64decode(word + "=" * (-len(word) % 4))


async def test_a_short_password_is_left_out_too(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(b"bad password hunter2", 403)
    only = [repository(f"{egress_setup.far.url}/a", "hunter2")]
    async with egress_setup.opened(origins=only) as inside, git(inside) as client:
        assert (await client.get(f"/0{REFS}")).text == "bad password *******"


async def test_a_redirect_is_not_followed_with_the_token(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(b"", 301, location=f"{egress_setup.far.url}/elsewhere")
    async with (
        egress_setup.opened(origins=repositories(egress_setup)) as inside,
        git(inside) as client,
    ):
        assert (await client.get(f"/0{REFS}")).status_code == 301
    assert len(egress_setup.far.seen) == 1


async def test_a_push_that_is_too_large_is_refused_and_a_dead_server_is_said(
    egress_setup: EgressSetup,
):
    few = EgressBounds(body_bytes=1000, linger_seconds=0.2)
    gone = repository("http://127.0.0.1:1/a/b", TOKEN)
    async with (
        egress_setup.opened({"bounds": few}, origins=[*repositories(egress_setup), gone]) as inside,
        git(inside) as client,
    ):
        large = await client.post("/0/git-receive-pack", content=b"x" * 2000)
        assert large.status_code == 413
        assert (await client.get(f"/2{REFS}")).status_code == 502
    assert egress_setup.far.seen == []


async def test_a_session_without_repositories_has_no_such_road(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside:
        assert not [each for each in inside.opened.endpoints if "git" in each.socket]
        assert "GIT_CONFIG_COUNT" not in inside.opened.environ


PUSH = b"POST /0/git-receive-pack HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"


async def test_pushes_that_stall_are_not_held_in_memory(egress_setup: EgressSetup):
    """64 of 1 MB each, to a server that does not read them: they wait in the sandbox."""
    patient = EgressBounds()
    taken = 0

    async def push() -> None:
        nonlocal taken
        async with await connect(inside.path("git.sock")) as stream:
            await stream.send(PUSH)
            for _ in range(99):
                await stream.send(b"x" * 10_000)
                taken += 10_000
            await stream.receive()

    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(128)
        only = [repository(f"http://127.0.0.1:{deaf.getsockname()[1]}/a")]
        async with (
            egress_setup.opened({"bounds": patient}, origins=only) as inside,
            anyio.create_task_group() as tasks,
        ):
            tracemalloc.start()
            try:
                for _ in range(64):
                    tasks.start_soon(push)
                await until(lambda: taken > 64 * 10_000)
                before = -1
                while taken != before:  # until nothing moves any more
                    before = taken
                    await anyio.sleep(0.5)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            tasks.cancel_scope.cancel()
    assert held < 24_000_000


async def test_a_push_goes_on_while_it_comes(egress_setup: EgressSetup):
    read = 0

    async def listen(stream: SocketStream) -> None:
        nonlocal read
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                while data := await stream.receive():
                    read += len(data)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    only = [repository(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/a")]
    async with (
        egress_setup.opened(origins=only) as inside,
        listener,
        anyio.create_task_group() as tasks,
        await connect(inside.path("git.sock")) as stream,
    ):
        tasks.start_soon(listener.serve, listen)
        await stream.send(PUSH + b"x" * 999_999)
        await until(lambda: read > 999_999)
        tasks.cancel_scope.cancel()


async def test_a_push_that_stops_coming_is_given_up(egress_setup: EgressSetup):
    hasty = msgspec.structs.replace(QUICK, body_seconds=0.2)
    async with egress_setup.opened({"bounds": hasty}, origins=repositories(egress_setup)) as inside:
        raw = await inside.raw(PUSH + b"x" * 1000, "git.sock")
        assert raw.startswith(b"HTTP/1.1 408")
        await egress_setup.until(lambda: egress_setup.far.open == 0)
    assert egress_setup.far.seen == []


async def test_a_push_that_drips_is_given_up_too(egress_setup: EgressSetup):
    """The time is that for all of the body, not for each piece of it."""
    hasty = msgspec.structs.replace(QUICK, body_seconds=0.3)
    async with (
        egress_setup.opened({"bounds": hasty}, origins=repositories(egress_setup)) as inside,
        await connect(inside.path("git.sock")) as stream,
        anyio.create_task_group() as tasks,
    ):

        async def drip() -> None:
            with suppress(OSError, anyio.BrokenResourceError):
                await stream.send(PUSH)
                while True:
                    await stream.send(b"x")
                    await anyio.sleep(0.02)

        tasks.start_soon(drip)
        assert (await stream.receive()).startswith(b"HTTP/1.1 408")
        tasks.cancel_scope.cancel()


async def test_an_answer_that_nobody_reads_is_given_up(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await stream.send(chunk(b"x" * 60_000))

    egress_setup.far.reply = reply
    hasty = msgspec.structs.replace(QUICK, send_seconds=0.2)
    async with (
        egress_setup.opened({"bounds": hasty}, origins=repositories(egress_setup)) as inside,
        await connect(inside.path("git.sock")) as stream,
    ):
        await stream.send(f"GET /0{REFS} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await egress_setup.until(lambda: egress_setup.far.connections == 1)
        await egress_setup.until(lambda: egress_setup.far.open == 0)


async def test_a_push_in_chunks_goes_on_in_chunks_and_one_with_a_length_with_it(
    egress_setup: EgressSetup,
):
    async with (
        egress_setup.opened(origins=repositories(egress_setup)) as inside,
        git(inside) as client,
    ):

        async def parts() -> AsyncGenerator[bytes, None]:
            yield b"a" * 100_000
            yield b"b"

        assert (await client.post("/0/git-receive-pack", content=parts())).status_code == 200
        assert (await client.post("/0/git-receive-pack", content=b"whole")).status_code == 200
    chunked, whole = egress_setup.far.seen
    assert (chunked.body, chunked.header("content-length")) == (b"a" * 100_000 + b"b", None)
    assert (whole.body, whole.header("content-length")) == (b"whole", "5")
    assert egress_setup.far.connections == 1


async def test_a_push_in_chunks_without_end_is_cut_off(egress_setup: EgressSetup):
    few = msgspec.structs.replace(QUICK, body_bytes=100_000)
    head = b"POST /0/git-receive-pack HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with egress_setup.opened({"bounds": few}, origins=repositories(egress_setup)) as inside:
        raw = await inside.raw(head + chunk(b"x" * 60_000) * 3, "git.sock")
        assert raw.startswith(b"HTTP/1.1 413")
        await egress_setup.until(lambda: egress_setup.far.open == 0)
    assert egress_setup.far.seen == []  # it has not seen the end of any
