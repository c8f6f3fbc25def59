"""The road to the model: what passes, what is put on, what is left out."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import h11
import httpx2
import msgspec
import pytest
from anyio.abc import ByteStream
from pydantic import SecretStr

from roost.egress.host import serving
from roost.egress.options import ModelUpstream, openai
from tests.egress.both_sides import (
    KEY,
    QUICK,
    STREAM_HEAD,
    EgressSetup,
    Inside,
    Seen,
    answer,
    chunk,
    connect,
    frame,
    message,
    rest,
    spoken,
    streamed,
)


async def test_the_placeholder_goes_in_and_the_real_key_goes_out(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside, inside.model() as client:
        headers = {"authorization": "Bearer placeholder", "anthropic-beta": "tools"}
        response = await client.post(
            "/v1/messages?beta=true", json={"model": "claude-x"}, headers=headers
        )
    assert response.status_code == 200
    (seen,) = egress_setup.far.seen
    assert seen.target == "/v1/messages?beta=true"
    assert seen.header("x-api-key") == KEY
    assert seen.header("authorization") is None
    assert seen.header("anthropic-beta") == "tools"
    assert seen.header("host") == f"127.0.0.1:{egress_setup.far.port}"
    assert "placeholder" not in str(seen.headers)


async def test_a_bearer_key_and_the_prefix_of_another_dialect_are_put_on(egress_setup: EgressSetup):
    upstream = openai(f"{egress_setup.far.url}/gateway/v1", SecretStr(KEY))
    async with egress_setup.opened(
        {"upstreams": [ModelUpstream.default(upstream)]}, api="openai"
    ) as inside:
        assert inside.opened.environ["OPENAI_BASE_URL"] == "http://127.0.0.1:8701/v1"
        (endpoint,) = inside.opened.endpoints
        assert (endpoint.port, endpoint.socket) == (8701, "/run/roost/model.sock")
        async with inside.model() as client:
            await client.post("/v1/responses", json={"model": "gpt-x"})
    (seen,) = egress_setup.far.seen
    assert seen.target == "/gateway/v1/responses"
    assert seen.header("authorization") == f"Bearer {KEY}"
    assert seen.header("x-api-key") is None


async def test_a_stream_passes_byte_for_byte_and_piece_by_piece(egress_setup: EgressSetup):
    pieces = spoken("Hel", "lo, w\u00f6rld", "\u2603" * 1000)
    sent: list[bytes] = []
    proceed = anyio.Semaphore(0)

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD)
        for piece in pieces:
            await proceed.acquire()
            sent.append(piece)
            await stream.send(chunk(piece))
        await stream.send(b"0\r\n\r\n")

    egress_setup.far.reply = reply
    received = b""
    async with (
        egress_setup.opened() as inside,
        inside.model() as client,
        client.stream("POST", "/v1/messages", json={"model": "m", "stream": True}) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        proceed.release()
        async for data in response.aiter_raw():
            received += data
            # Nothing is held back: what has been sent so far is here before more is sent.
            if received == b"".join(sent):
                proceed.release()
    assert received == b"".join(pieces)


async def test_frames_cut_at_any_byte_arrive_whole(egress_setup: EgressSetup):
    whole = b"".join(spoken("one", KEY[:20], "two"))
    egress_setup.far.reply = streamed(*(whole[i : i + 1] for i in range(len(whole))))
    async with egress_setup.opened() as inside:
        response = await inside.ask(stream=True)
    assert response.content == whole
    assert egress_setup.accounts[0].usage.output_tokens == 20


async def test_many_requests_share_one_connection(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside, inside.model() as client:
        for number in range(5):
            response = await client.post("/v1/messages", json={"model": "m", "n": number})
            assert response.json() == {"type": "message", "usage": {}}
    assert [seen.json()["n"] for seen in egress_setup.far.seen] == [0, 1, 2, 3, 4]
    assert len(egress_setup.accounts) == 5


async def test_requests_sent_ahead_are_answered_in_order(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside, await connect(inside.path("model.sock")) as stream:
        bodies = [b'{"model":"m","n":%d}' % n for n in range(3)]
        await stream.send(b"".join(message(body) for body in bodies))
        received = b""
        while received.count(b"HTTP/1.1 200") < 3:
            received += await stream.receive()
    assert [seen.json()["n"] for seen in egress_setup.far.seen] == [0, 1, 2]


async def test_a_request_in_chunks_and_one_that_waits_to_continue_are_taken(
    egress_setup: EgressSetup,
):
    body = b'{"model":"m","text":"' + b"x" * 100_000 + b'"}'
    head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    async with egress_setup.opened() as inside:
        chunked = head + b"transfer-encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n"
        assert b"200 X" not in await inside.raw(chunked)
        async with await connect(inside.path("model.sock")) as stream:
            await stream.send(
                head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            assert (await stream.receive()).startswith(b"HTTP/1.1 100")
            await stream.send(body)
            assert (await rest(stream)).startswith(b"HTTP/1.1 200")
    assert [len(seen.body) for seen in egress_setup.far.seen] == [len(body)] * 2


async def test_a_large_answer_and_a_large_request_pass(egress_setup: EgressSetup):
    text = "x" * (8 * 1024 * 1024)
    egress_setup.far.reply = answer({"text": text})
    async with egress_setup.opened() as inside:
        response = await inside.ask(text=text)
    assert response.json() == {"text": text}
    assert egress_setup.far.seen[0].json() == {"model": "claude-x", "text": text}


@pytest.mark.parametrize("size", [1_000, 2_000_000])  # in one part, and in many
async def test_a_request_over_the_limit_is_refused_in_the_words_of_the_api(
    egress_setup: EgressSetup, size: int
):
    bounds = msgspec.structs.replace(egress_setup.options().bounds, body_bytes=1000)
    async with egress_setup.opened({"bounds": bounds}) as inside:
        response = await inside.ask(text="x" * size)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"
    assert egress_setup.far.seen == []


async def test_large_requests_at_once_have_a_limit_together_that_is_given_back(
    egress_setup: EgressSetup,
):
    bounds = msgspec.structs.replace(egress_setup.options().bounds, held_bytes=100_000)
    release = anyio.Event()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await release.wait()
        await answer({})(seen, stream)

    egress_setup.far.reply = reply
    statuses: list[int] = []
    async with (
        egress_setup.opened({"bounds": bounds}) as inside,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            statuses.append((await inside.ask(text="x" * 60_000)).status_code)

        tasks.start_soon(ask)
        await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
        await ask()
        assert statuses == [429]
        release.set()
        await egress_setup.until(lambda: len(statuses) == 2)
        await ask()
    assert statuses == [429, 200, 200]


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/messages",
        "DELETE /v1/models/x",
        "POST /v1/files",
        "POST /v1/messages/batches",
        "POST /v1/messages/",
        "POST //v1/messages",
        "POST /v1/../v1/messages",
        "POST /v1/messages%2f..%2ffiles",
        "POST /v1%2fmessages",
        "POST http://localhost/v1/messages",
        "GET /v1/models/a/b",
        "GET /v1/models/..",
        "HEAD /",
        "OPTIONS *",
        "CONNECT api.example.com:443",
        "PROPFIND /v1/messages",
    ],
)
async def test_what_is_not_on_the_list_is_refused_and_reported(
    egress_setup: EgressSetup, line: str
):
    async with egress_setup.opened() as inside:
        raw = await inside.raw(f"{line} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
    assert raw.startswith(b"HTTP/1.1 404")
    if not line.startswith("HEAD"):
        envelope = msgspec.json.decode(raw.partition(b"\r\n\r\n")[2])
        assert envelope["type"] == "error"
        assert envelope["error"]["type"] == "not_found_error"
    assert egress_setup.far.seen == []
    (refused,) = egress_setup.refusals
    assert (refused.reason, refused.host) == ("path_not_allowed", "127.0.0.1")
    assert refused.port == egress_setup.far.port


async def test_models_can_be_listed(egress_setup: EgressSetup):
    async with egress_setup.opened() as inside, inside.model() as client:
        assert (await client.get("/v1/models?limit=5")).status_code == 200
        assert (await client.get("/v1/models/claude-x-20260101")).status_code == 200
    assert [seen.target for seen in egress_setup.far.seen] == [
        "/v1/models?limit=5",
        "/v1/models/claude-x-20260101",
    ]


async def test_only_headers_that_are_known_go_on(egress_setup: EgressSetup):
    odd = {
        "cookie": "a=b",
        "x-forwarded-for": "10.0.0.1",
        "helicone-target-url": "https://evil.example",
        "x-portkey-api-key": "x",
        "proxy-authorization": "Basic eA==",
        "x-http-method-override": "DELETE",
        "openai-organization": "org",
        "forwarded": "for=1",
        "accept-encoding": "gzip, br",
        "x-stainless-lang": "js",
        "user-agent": "agent/1",
    }
    async with egress_setup.opened() as inside, inside.model() as client:
        await client.post("/v1/messages", json={"model": "m"}, headers=odd)
    names = {name for name, _ in egress_setup.far.seen[0].headers}
    assert names == {
        "host",
        "accept",
        "accept-encoding",
        "anthropic-version",
        "content-length",
        "content-type",
        "user-agent",
        "x-api-key",
        "x-stainless-lang",
    }
    assert egress_setup.far.seen[0].header("accept-encoding") == "identity"


async def test_cookies_and_the_account_stay_outside(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(
        {}, set_cookie="s=1", anthropic_organization_id="org_1", request_id="req_1"
    )
    async with egress_setup.opened() as inside:
        first = await inside.ask()
        await inside.ask()
    assert "set-cookie" not in first.headers
    assert "anthropic-organization-id" not in first.headers
    assert first.headers["request-id"] == "req_1"
    assert egress_setup.far.seen[1].header("cookie") is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"model":"claude-b"}', "may not use"),
        (b'{"model":"claude-a","model":"claude-b"}', "may not use"),
        (b'{"mod\\u0065l":"claude-b"}', "may not use"),
        (b'{"model":"claude-a","Model":"claude-b"}', "exactly one"),
        (b'{"model":["claude-a"]}', "must be a string"),
        (b"{}", "exactly one"),
        (b"[]", "not a JSON object"),
        (b'{"model":"claude-a"', "not a JSON object"),
        (b"", "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
        (b'{"a":' * 5000, "not a JSON object"),
    ],
)
async def test_another_model_is_refused_however_it_is_written(
    egress_setup: EgressSetup, body: bytes, said: str
):
    async with egress_setup.opened(models=["claude-a"]) as inside, inside.model() as client:
        response = await client.post("/v1/messages", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert said in response.json()["error"]["message"]
    assert egress_setup.far.seen == []


async def test_a_second_spelling_of_the_model_never_reaches_the_server(egress_setup: EgressSetup):
    async with egress_setup.opened(models=["claude-*"]) as inside, inside.model() as client:
        body = b'{"model":"evil","mod\\u0065l":"claude-a", "nested": {"model" : "kept", "model":1}}'
        assert (await client.post("/v1/messages", content=body)).status_code == 200
    assert egress_setup.far.seen[0].body == (
        b'{"model":"claude-a","nested":{"model" : "kept", "model":1}}'
    )


async def test_a_server_that_is_not_there_is_an_error_of_the_api(egress_setup: EgressSetup):
    upstream = egress_setup.upstream("http://127.0.0.1:1")
    async with egress_setup.opened({"upstreams": [ModelUpstream.default(upstream)]}) as inside:
        response = await inside.ask()
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "api_error"
    assert (egress_setup.accounts[0].status, egress_setup.accounts[0].complete) == (502, False)
    assert egress_setup.accounts[0].usage.input_tokens == 0


async def test_an_error_of_the_model_is_passed_on_as_it_is(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(
        {"type": "error", "error": {"type": "overloaded_error"}}, status=529, retry_after="7"
    )
    async with egress_setup.opened() as inside:
        response = await inside.ask()
    assert (response.status_code, response.headers["retry-after"]) == (529, "7")
    assert response.json()["error"]["type"] == "overloaded_error"
    assert egress_setup.accounts[0].status == 529


async def test_an_answer_cut_by_the_server_is_seen_as_cut(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(b"".join(spoken("half")[:2])))
        await stream.aclose()

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        with pytest.raises(httpx2.RemoteProtocolError):
            await inside.ask(stream=True)
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
    assert not egress_setup.accounts[0].complete
    assert egress_setup.accounts[0].usage.input_tokens == 10


async def test_when_the_agent_hangs_up_the_model_is_hung_up_on(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(spoken()[0]))
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        async with inside.model() as client:
            body = {"model": "m", "stream": True}
            async with client.stream("POST", "/v1/messages", json=body) as response:
                assert await anext(response.aiter_raw())
            await egress_setup.until(lambda: egress_setup.far.open == 0)
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
    assert (egress_setup.accounts[0].status, egress_setup.accounts[0].complete) == (200, False)


async def test_hanging_up_is_noticed_while_the_model_is_silent(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        async with await connect(inside.path("model.sock")) as stream:
            await stream.send(message())
            await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
        await egress_setup.until(lambda: egress_setup.far.open == 0)
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
    assert egress_setup.accounts[0].status == 499


async def test_closing_the_grant_cuts_what_is_under_way_and_accounts_for_it(
    egress_setup: EgressSetup,
):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(b"".join(spoken("a" * 4000)[:2])))
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        stream = await connect(inside.path("model.sock"))
        await stream.send(message())
        await stream.receive()
        assert egress_setup.accounts == []
    async with stream:
        await rest(stream)
    assert egress_setup.accounts[0].usage.output_tokens >= 1000
    await egress_setup.until(lambda: egress_setup.far.open == 0)


async def test_fifty_agents_at_once_get_their_own_answers(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await anyio.sleep(0.01)
        await streamed(*spoken(seen.json()["text"] * 50))(seen, stream)

    egress_setup.far.reply = reply
    right: list[bool] = []
    async with egress_setup.opened() as inside:

        async def ask(number: int) -> None:
            response = await inside.ask(stream=True, text=f"<{number}>")
            right.append(response.content == b"".join(spoken(f"<{number}>" * 50)))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(ask, number)
    assert right == [True] * 50
    assert sum(account.usage.output_tokens for account in egress_setup.accounts) == 50 * 20


async def test_connections_over_the_limit_wait_for_a_slot(egress_setup: EgressSetup):
    bounds = msgspec.structs.replace(egress_setup.options().bounds, connections=2)
    most = 0

    async def reply(seen: Seen, stream: ByteStream) -> None:
        nonlocal most
        most = max(most, egress_setup.far.open)
        await anyio.sleep(0.02)
        await answer({})(seen, stream)

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened({"bounds": bounds}) as inside,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(10):
            tasks.start_soon(inside.ask)
    assert len(egress_setup.accounts) == 10
    assert most <= 2


async def test_a_compressed_answer_is_passed_on_in_the_clear(egress_setup: EgressSetup):
    import gzip

    plain = msgspec.json.encode({"usage": {"input_tokens": 3, "output_tokens": 4}})
    egress_setup.far.reply = answer(gzip.compress(plain), content_encoding="gzip")
    async with egress_setup.opened() as inside:
        response = await inside.ask()
    assert response.content == plain
    assert "content-encoding" not in response.headers
    assert egress_setup.accounts[0].usage.output_tokens == 4


def dechunked(body: bytes) -> bytes:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    plain = b""
    while not isinstance(event := parser.next_event(), h11.EndOfMessage):
        plain += bytes(event.data) if isinstance(event, h11.Data) else b""
    return plain


def echo(status: int) -> Any:
    """A gateway that repeats the whole request, in headers and body."""

    async def reply(seen: Seen, stream: ByteStream) -> None:
        key = str(seen.header("x-api-key"))
        await stream.send(
            b"HTTP/1.1 %d %s\r\nx-echo: %s\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n" % (status, key.encode(), key.encode())
        )
        data = frame("error", headers=dict(seen.headers)) * 3
        for start in range(0, len(data), 7):
            await stream.send(chunk(data[start : start + 7]))
        await stream.send(b"0\r\n\r\n")

    return reply


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_the_key_is_in_nothing_that_comes_back(
    egress_setup: EgressSetup, caplog: pytest.LogCaptureFixture, status: int
):
    caplog.set_level(logging.DEBUG)
    egress_setup.far.reply = echo(status)
    async with egress_setup.opened() as inside:
        raw = await inside.raw(message(b'{"model":"m"}', "connection: close"))
        everything = [raw, repr(inside.opened).encode(), repr(egress_setup.options()).encode()]
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert raw.endswith(b"0\r\n\r\n")
    # The far side cuts the key into chunks, which are framed anew: only the body itself can show it.
    plain = dechunked(body)
    asterisks = b"*" * len(KEY)
    assert asterisks in head
    assert plain.count(b'"x-api-key":"' + asterisks + b'"') == 3
    everything += [plain]
    everything += [
        repr(report).encode() for report in (*egress_setup.accounts, *egress_setup.refusals)
    ]
    everything.append(caplog.text.encode())
    for part in everything:
        assert KEY.encode() not in part
        assert KEY[:20].encode() not in part


@pytest.mark.parametrize("bad", ["cut", "garbage", "unframed"])
async def test_the_key_is_in_no_error_either(
    egress_setup: EgressSetup, caplog: pytest.LogCaptureFixture, bad: str
):
    caplog.set_level(logging.DEBUG)

    async def reply(seen: Seen, stream: ByteStream) -> None:
        key = str(seen.header("x-api-key")).encode()
        replies = {
            "cut": b"",
            "garbage": key * 3 + b"\r\n\r\n",
            "unframed": b"HTTP/1.1 200 OK\r\ncontent-length: " + key + b"\r\n\r\n",
        }
        await stream.send(replies[bad])
        await stream.aclose()

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        raw = await inside.raw(message(b'{"model":"m"}', "connection: close"))
    assert raw.startswith(b"HTTP/1.1 502")
    assert KEY.encode() not in raw + caplog.text.encode()


async def test_large_requests_of_all_sessions_have_a_limit_together(egress_setup: EgressSetup):
    bounds = msgspec.structs.replace(QUICK, held_bytes=100_000, all_held_bytes=100_000)
    release = anyio.Event()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await release.wait()
        await answer({})(seen, stream)

    egress_setup.far.reply = reply
    async with serving(egress_setup.options(bounds=bounds)) as egress, AsyncExitStack() as stack:
        first, second = [
            Inside(
                await stack.enter_async_context(egress.open(egress_setup.grant(session_id=name))),
                egress,
            )
            for name in ("sesn_1", "sesn_2")
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(first.ask, text="x" * 60_000))
            await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
            refused = await second.ask(text="x" * 60_000)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
            release.set()
        assert (await second.ask(text="x" * 60_000)).status_code == 200


async def test_an_answer_of_the_model_that_nobody_reads_is_given_up(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD)
        while True:
            await stream.send(chunk(b"x" * 60_000))

    egress_setup.far.reply = reply
    bounds = msgspec.structs.replace(QUICK, send_seconds=0.2)
    async with (
        egress_setup.opened({"bounds": bounds}) as inside,
        await connect(inside.path("model.sock")) as stream,
    ):
        await stream.send(message())
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
        await egress_setup.until(lambda: egress_setup.far.open == 0)


async def test_a_request_that_stops_coming_is_given_up(egress_setup: EgressSetup):
    bounds = msgspec.structs.replace(QUICK, body_seconds=0.2)
    async with egress_setup.opened({"bounds": bounds}) as inside:
        raw = await inside.raw(message(b"x" * 1000)[:-1])
    assert raw.startswith(b"HTTP/1.1 408")
