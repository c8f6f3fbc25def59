"""Frames that no good client sends: each gets an answer, none costs the server anything."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.gateway.talk import Api, Talk
from tests.stores import Databases
from websockets.exceptions import ConnectionClosed

from roost.testing.live import LiveServer

LIMIT = 256 * 1024
BAD = [
    ("", "not_json"),
    ("{", "not_json"),
    ("nonsense", "not_json"),
    ("[]", "invalid_request"),
    ("null", "invalid_request"),
    ("{}", "invalid_request"),
    ('{"type": 5}', "invalid_request"),
    ('{"type": "unheard_of"}', "invalid_request"),
    ('{"type": "message"}', "invalid_request"),
    ('{"type": "message", "content": 5}', "invalid_request"),
    ('{"type": "message", "content": ""}', "invalid_request"),
    ('{"type": "message", "content": []}', "invalid_request"),
    ('{"type": "message", "content": "a\\u0000b"}', "invalid_request"),
    ('{"type": "message", "content": "x", "id": ""}', "invalid_request"),
    ('{"type": "message", "content": "x", "id": "%s"}' % ("x" * 129), "invalid_request"),
    ('{"type": "message", "content": "x", "id": 7}', "invalid_request"),
    ('{"type": "start", "after": -1}', "invalid_request"),
    ('{"type": "permission_response"}', "invalid_request"),
    ('{"type": "ask_user_answer", "requestId": "x"}', "invalid_request"),
    ('{"type": "ask_user_answer", "requestId": "x", "answers": %s' % ("[" * 100_000), "not_json"),
]


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(
        tmp_path_factory.mktemp("server") / "data",
        ROOST_MAX_FRAME_BYTES=str(4 * 1024 * 1024),
        ROOST_MAX_UNREAD_BYTES=str(LIMIT),
        ROOST_PING_SECONDS="30",  # longer than a busy machine keeps a client from answering
        ROOST_LOG_LEVEL="error",
    ) as live:
        yield live


def resident(server: LiveServer) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def sockets(server: LiveServer) -> int:
    lines = httpx2.get(f"{server.url}/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("roost_sockets ")).split()[1]))


def settle(server: LiveServer, at: int = 0) -> None:
    """Until so many sockets are open; those of tests before take a moment to go."""
    deadline = time.monotonic() + 240
    while sockets(server) != at:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_bad_frame_gets_an_error_and_the_next_good_one_works(api: Api) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk:
        for frame, code in BAD:
            talk.connection.send(frame)
            error = talk.until("error")
            assert error["code"] == code, (frame[:80], error)
            assert error["message"]
            talk.say("interrupt")
            talk.until("ack")
    assert {e["type"] for e in api.events(session_id)} == {"user.interrupt"}


def test_too_many_in_a_row_end_the_connection(api: Api) -> None:
    talk = api.open(api.session())
    with suppress(ConnectionClosed):  # the end may come before the last of them is sent
        for _ in range(30):
            talk.connection.send("nonsense")
    code, reason = talk.close_code()
    assert (code, reason) == (1008, "too many bad messages in a row")
    assert talk.types() == ["error"] * 21


def test_a_binary_frame_ends_it(api: Api) -> None:
    talk = api.talk(api.session())
    talk.connection.send(b"\x00\x01")
    assert talk.close_code()[0] == 1003


def test_what_is_not_utf_8_ends_it(api: Api) -> None:
    talk = api.talk(api.session())
    talk.connection.send(b"\xff\xfe", text=True)
    assert talk.close_code()[0] == 1007


def test_frames_of_10_mb_are_refused_and_the_memory_stays_flat(
    server: LiveServer, api: Api
) -> None:
    session_id = api.session()
    huge = json.dumps({"type": "message", "content": "x" * 10_000_000})
    before = resident(server)
    for _ in range(20):
        talk = api.talk(session_id)
        with pytest.raises(ConnectionClosed):
            talk.connection.send(huge)
            talk.connection.recv(timeout=300)
            talk.connection.recv(timeout=300)
        talk.close()
        assert talk.connection.close_code in (1009, 1006)  # 1006: cut while it still sent
    assert resident(server) - before < 50
    assert [e["type"] for e in api.events(session_id)] == []


@pytest.mark.parametrize("count", [1000, pytest.param(3000, marks=pytest.mark.chaos)])
def test_a_flood_is_taken_in_order_and_the_memory_stays_flat(
    server: LiveServer, api: Api, count: int
) -> None:
    session_id = api.session()
    before = resident(server)
    with api.talk(session_id) as talk:
        for number in range(count):
            talk.connection.send(f'{{"type":"interrupt","id":"i-{number}"}}')
            if number % 500 == 499:  # or it is the client who leaves too much unread
                talk.until(lambda m, last=f"i-{number}": m.get("id") == last)
    acks = [m for m in talk.seen if m["type"] == "ack" and m["id"]]
    assert [ack["id"] for ack in acks] == [f"i-{number}" for number in range(count)]
    assert [ack["seq"] for ack in acks] == list(range(1, count + 1))
    assert resident(server) - before < 50


def test_who_has_sent_more_than_is_taken_at_once_is_not_silent(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While the server works through what it was sent it reads nothing, not even an answer to its pings."""
    many = 600
    frames = [f'{{"type":"interrupt","id":"i-{number}"}}' for number in range(many)]
    sent = b"".join(masked(frame) for frame in ['{"type":"start"}', *frames])
    with (
        LiveServer(
            tmp_path_factory.mktemp("server") / "data",
            ROOST_PING_SECONDS="0.1",  # silence of 250 ms is too long
        ) as live,
        Api(live) as own,
        own.open(own.session()) as talk,
    ):
        talk.connection.socket.sendall(sent)
        last = talk.until(lambda m: m.get("id") == f"i-{many - 1}")
        assert last["type"] == "ack"


def masked(text: str) -> bytes:
    """A frame as clients send it, with a mask that changes nothing."""
    size = len(text)
    assert size < 126
    return b"\x81" + bytes([0x80 | size]) + b"\0\0\0\0" + text.encode()


def test_a_slow_reader_is_told_to_resume_and_misses_nothing(server: LiveServer, api: Api) -> None:
    session_id = api.session()
    settle(server)
    talk = api.talk(session_id)
    before = resident(server)
    body = {
        "events": [{"type": "user.message", "content": [{"type": "text", "text": "x" * 200_000}]}]
    }
    deadline = time.monotonic() + 240
    while sockets(server):  # until the server has had enough
        assert time.monotonic() < deadline
        api.post(f"/v1/sessions/{session_id}/events", body)
    assert resident(server) - before < 120
    code, reason = talk.close_code()
    seqs = [m["seq"] for m in talk.seen if m["type"] == "sdk_message"]
    assert seqs == list(range(1, len(seqs) + 1))
    if code == 1013:  # else the goodbye was cut off with the rest: it was too slow for that, too
        assert reason is not None and reason.startswith("too slow; resume with after=")
    with api.open(session_id) as back:
        back.say("start", after=seqs[-1])
        assert back.until("sdk_message")["seq"] == seqs[-1] + 1


def silent(server: LiveServer, token: str) -> socket.socket:
    """A client that says hello and then nothing, not even when it is asked."""
    where = urlsplit(server.url)
    line = socket.create_connection((where.hostname, where.port))
    hello = (
        f"GET /ws/v2?token={token} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n"
    )
    line.sendall(hello.encode())
    assert b" 101 " in line.recv(4096)
    return line


def test_a_client_that_does_not_answer_pings_is_let_go(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("server") / "data"
    with (
        LiveServer(data, ROOST_PING_SECONDS="2") as live,  # silence of 5 seconds is too long
        Api(live) as own,
        own.talk(own.session()) as alive,
        silent(live, own.token()) as line,
    ):
        line.settimeout(120)
        said = b""
        while b"no answer to pings" not in said:
            said += line.recv(4096)
        settle(live, at=1)
        alive.say("interrupt")
        alive.until("ack")


def test_a_client_that_pings_and_reads_no_answers_is_cut_off(server: LiveServer, api: Api) -> None:
    settle(server)
    before = resident(server)
    pings = (b"\x89\xfd" + bytes(4) + b"x" * 125) * 1000
    with silent(server, api.token()) as line:
        line.settimeout(60)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(2000):  # 260 MB, of which a few are taken
                line.sendall(pings)
    assert resident(server) - before < 60
    settle(server)


def test_a_socket_that_is_cut_leaves_nothing_behind(server: LiveServer, api: Api) -> None:
    session_id = api.session()
    settle(server)
    talks: list[Talk] = [api.talk(session_id) for _ in range(20)]
    assert sockets(server) == 20
    for talk in talks:
        talk.connection.socket.close()
    settle(server)


def handshake(server: LiveServer, path: str = "/ws/v2", *headers: str) -> bytes:
    """What a handshake is answered with, to the end of the connection."""
    place = urlsplit(server.url)
    lines = [
        f"GET {path} HTTP/1.1",
        f"host: {place.netloc}",
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {base64.b64encode(os.urandom(16)).decode()}",
        *headers,
    ]
    got = b""
    with socket.create_connection((str(place.hostname), place.port), timeout=300) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode())
        while piece := line.recv(65536):
            got += piece
    return got


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ws/v2?token=" + "x" * 9000, []),
        ("/ws/v2", ["x-long: " + "x" * 9000]),
        ("/ws/v2", [f"x-{n}: y" for n in range(150)]),
        ("/ws/v2", [f"x-{n}: y" for n in range(250)]),
    ],
    ids=["line", "header", "150 headers", "250 headers"],
)
def test_a_handshake_that_is_too_large_is_answered(
    server: LiveServer, path: str, headers: list[str]
) -> None:
    answer = handshake(server, path, *headers)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["details"]["error_code"] == (
        "head_too_large"
    )


def test_a_handshake_that_cannot_be_read_is_answered(server: LiveServer) -> None:
    assert handshake(server, "/ws/v2", "x: \x01").startswith(b"HTTP/1.1 400 ")


def test_refused_handshakes_write_no_lines_without_end(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with LiveServer(tmp_path_factory.mktemp("server") / "data") as live:
        before = len(live.output)
        for _ in range(50):
            assert b" 401 " in handshake(live, "/ws/v2?token=wrong")
            assert b" 431 " in handshake(live, "/ws/v2", "x: " + "y" * 9000)
            assert handshake(live, "/ws/v2", "x: \x01").startswith(b"HTTP/1.1 400 ")
        assert len(live.output) - before < 10_000


def test_a_message_in_parts_without_end_is_refused(server: LiveServer, api: Api) -> None:
    with api.open() as talk:
        talk.connection.socket.sendall(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 5000)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                talk.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_key_has_so_many_sockets(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        LiveServer(tmp_path_factory.mktemp("server") / "data", ROOST_MAX_SOCKETS="2") as live,
        Api(live) as own,
    ):
        with own.open(), own.open():
            answer = handshake(live, f"/ws/v2?token={own.token()}")
            assert b" 429 " in answer
            assert b"too_many_sockets" in answer
        settle(live)
        own.open().close()
