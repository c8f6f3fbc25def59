"""Agents in a pool elsewhere: nothing is lost or told twice, whatever happens on the way."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.pool.small_pool import PLANTED, SmallPool, small_pool

from roost.client import (
    DirectoryKeeper,
    PoolRefused,
    PoolUnavailable,
    SessionProxy,
    azure_token,
    keepers,
    session_proxy,
)
from roost.dynamic_sessions import OLDER, SCOPE, CodePool

SECRET = "a secret that nobody can guess"
Json = dict[str, Any]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SmallPool]:
    with small_pool(tmp_path / "pool") as pool:
        yield pool


def proxy_of(pool: SmallPool, **more: Any) -> SessionProxy:
    given = {"secret": SECRET, "environ": {"PYTHONPATH": str(PLANTED)}, "wait": 0.5, **more}
    return SessionProxy(pool.url, "token", **given)


async def chat(proxy: SessionProxy, message: str, name: str = "chat-1", **more: Any) -> list[Json]:
    with anyio.fail_after(300):
        return [event async for event in proxy.stream_sdk_session_chat(name, message, **more)]


def play(**what: Any) -> str:
    return f"PLAY {json.dumps(what)}"


def text(events: list[Json]) -> str:
    return "".join(event["content"] for event in events if event["type"] == "text")


def is_whole(events: list[Json], pieces: int) -> bool:
    wanted = "".join(f"{n} " for n in range(pieces))
    return text(events).startswith(f"{wanted}messages ") and text(events).count("messages") == 1


async def test_a_session_is_begun_talked_to_and_cleared(pool: SmallPool) -> None:
    async with proxy_of(pool) as proxy:
        begun = [event async for event in proxy.init_sdk_session("chat-1", "a-team")]
        assert (begun[-1]["type"], begun[-1]["turns"]) == ("done", 0)
        for turn in (1, 2, 3):
            events = await chat(proxy, f"message {turn}")
            assert text(events).startswith(f"messages {turn},")
            assert events[-1]["turns"] == turn
            assert events[-1]["session_id"] == begun[-1]["session_id"]
        status = await proxy.get_session_status("chat-1")
        assert (status["initialized"], status["team"], status["turns"]) == (True, "a-team", 3)
        assert await proxy.clear_session("chat-1") == {"status": "cleared"}
        assert (await proxy.get_session_status("chat-1"))["exists"] is False


async def test_text_comes_while_the_turn_runs(pool: SmallPool, tmp_path: Path) -> None:
    target = tmp_path / "written"
    async with proxy_of(pool) as proxy:
        stream = proxy.stream_sdk_session_chat("chat-1", play(tool={"file_path": str(target)}))
        async for event in stream:
            if event["type"] == "confirm_request":  # so the turn waits for the other call
                assert not target.exists()
                assert await proxy.confirm("chat-1", event["request_id"], True)
                assert not await proxy.confirm("chat-1", event["request_id"], True)
        assert target.read_text() == "written"


async def test_requests_that_are_cut_off_anywhere_lose_nothing(pool: SmallPool) -> None:
    # Every request is cut off in one way or another, most of them more than once.
    faults = ["before", "after", "half", "429", "", "500", "after", "503", "half", "", "before"]
    pool.fault = lambda number: faults[number % len(faults)]
    async with proxy_of(pool) as proxy:
        for turn in (1, 2):
            events = await chat(proxy, play(pieces=40, pause=0.005))
            assert is_whole(events, 40) and events[-1]["turns"] == turn
            cursors = [event["cursor"] for event in events]
            assert cursors == sorted(set(cursors))


@pytest.mark.chaos
@pytest.mark.parametrize("fault", ["before", "after", "half", "503"])
async def test_each_request_of_a_turn_is_cut_off_alone(pool: SmallPool, fault: str) -> None:
    async with proxy_of(pool) as proxy:
        for turn in range(1, 31):
            began = len(pool.requests)
            pool.fault = lambda number, at=began + turn: fault if number == at else ""
            events = await chat(proxy, play(pieces=60, pause=0.005))
            assert is_whole(events, 60) and events[-1]["turns"] == turn


async def test_answers_that_the_pool_cuts_are_asked_for_in_smaller_pieces(pool: SmallPool) -> None:
    pool.most = 4096
    async with proxy_of(pool) as proxy:
        events = await chat(proxy, play(pieces=400))
        assert is_whole(events, 400)
        assert (await proxy.get_session_status("chat-1"))["turns"] == 1


HARD = [
    "'quoted' \"twice\" '''and''' \"\"\"more\"\"\"",
    "lines\nof\r\ntext\t\u2028 end\n",
    "\\ \\n \\\\' \\x00",
    "\0 a null byte",
    "half \ud800 of \udfff a character",
    "é 漢字 \U0001f600",
    "__import__('os')._exit(1)\n\")\n_roost_guest('')",
]
MESSAGES = ["".join(HARD), "", "0123456789abcdef" * 65536]


async def test_messages_arrive_exactly(pool: SmallPool) -> None:
    async with proxy_of(pool) as proxy:
        for count, message in enumerate(MESSAGES, 1):
            digest = hashlib.sha256(json.dumps(message).encode()).hexdigest()
            told = text(await chat(proxy, message))
            assert told == f"messages {count}, length {len(message)}, digest {digest}"
        with pytest.raises(ValueError, match="larger than"):
            await chat(proxy, "a" * (17 * 1024 * 1024))


async def test_a_container_that_is_replaced_between_turns(pool: SmallPool, tmp_path: Path) -> None:
    async with proxy_of(pool, keeper=DirectoryKeeper(tmp_path / "kept")) as proxy:
        await chat(proxy, "one")
        pool.recycle()
        events = await chat(proxy, "two")
        assert (text(events)[:11], events[-1]["turns"]) == ("messages 2,", 2)
        pool.recycle()
        await proxy.clear_session("chat-1")
        assert text(await chat(proxy, "new")).startswith("messages 1,")


async def test_a_container_that_is_replaced_during_a_turn(pool: SmallPool, tmp_path: Path) -> None:
    async with proxy_of(pool, keeper=DirectoryKeeper(tmp_path / "kept")) as proxy:
        await chat(proxy, "one")
        told = []
        async for event in proxy.stream_sdk_session_chat("chat-1", play(pieces=9999, pause=0.01)):
            told.append(event)
            if event["type"] == "text" and not event["content"].startswith("0"):
                pool.recycle()
        assert told[-1]["type"] == "error" and "was replaced" in told[-1]["error"]
        assert text(told).startswith("0 1 ")
        events = await chat(proxy, "again")
        assert (text(events)[:11], events[-1]["turns"]) == ("messages 2,", 2)


async def test_a_turn_that_is_killed_is_told_as_such(pool: SmallPool) -> None:
    async with proxy_of(pool) as proxy:
        told = []
        async for event in proxy.stream_sdk_session_chat("chat-1", play(pieces=9999, pause=0.01)):
            told.append(event)
            if event["type"] == "text":
                pool.container(proxy.identifier("chat-1")).end_turns()
        assert told[-1]["type"] == "error" and "ended from outside" in told[-1]["error"]
        with anyio.fail_after(300):
            stream = proxy.stream_sdk_session_chat("chat-1", play(pieces=9999, pause=0.01))
            async for event in stream:
                if event["type"] == "text":
                    await proxy.clear_session("chat-1")
        assert event["type"] == "error"


async def test_two_chats_at_once_on_one_session(pool: SmallPool) -> None:
    told: list[list[Json]] = []
    async with proxy_of(pool) as one, proxy_of(pool) as other:

        async def talk(proxy: SessionProxy) -> None:
            told.append(await chat(proxy, play(pieces=30, pause=0.005)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk, one)
            tasks.start_soon(talk, other)
    assert all(is_whole(events, 30) for events in told)
    assert sorted(events[-1]["turns"] for events in told) == [1, 2]
    assert len({events[-1]["session_id"] for events in told}) == 1


async def test_a_turn_is_not_taken_again_however_late_it_is_asked_for(
    pool: SmallPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = (session_proxy._ROOT / "guest" / "detached.py").read_text()
    assert "KEPT = 20 " in guest
    async with proxy_of(pool) as proxy:
        proxy._files["guest/detached.py"] = guest.replace("KEPT = 20 ", "KEPT = 2 ")
        first = await chat(proxy, "one", turn_id="turn-0001")
        for turn in (2, 3, 4):
            assert (await chat(proxy, "more", turn_id=f"turn-000{turn}"))[-1]["turns"] == turn
        again = await chat(proxy, "one", turn_id="turn-0001")
        assert [event["type"] for event in again] == ["error"]
        assert "was taken before" in again[0]["error"]
        assert first[-1]["turns"] == 1
        assert (await chat(proxy, "five"))[-1]["turns"] == 5


async def test_a_turn_is_not_taken_again_in_another_container(
    pool: SmallPool, tmp_path: Path
) -> None:
    keeper = DirectoryKeeper(tmp_path / "kept")
    async with proxy_of(pool, keeper=keeper) as proxy:
        await chat(proxy, "one")
        stream = proxy.stream_sdk_session_chat(
            "chat-1", play(pieces=9999, pause=0.01), turn_id="turn-0002"
        )
        async for event in stream:
            if event["type"] == "text":
                break
        await stream.aclose()
        pool.recycle()
        async with proxy_of(pool, keeper=DirectoryKeeper(tmp_path / "kept")) as other:
            (told,) = await chat(other, "two", turn_id="turn-0002")
            assert told["type"] == "error" and "container that is gone" in told["error"]
        # One that could not be begun, and not in another container, is begun when it is asked for again.
        begun = len(pool.requests)
        pool.fault = lambda number: "401" if number == begun + 2 else ""
        with pytest.raises(PoolRefused):
            await chat(proxy, "three", turn_id="turn-0003")
        pool.fault = lambda number: ""
        events = await chat(proxy, "three", turn_id="turn-0003")
        assert (text(events)[:11], events[-1]["turns"]) == ("messages 2,", 2)


async def test_a_container_that_is_replaced_before_a_turn_is_begun(pool: SmallPool) -> None:
    """It is begun in the next one, if it cannot have been begun in the one before."""
    replaced = 0

    def replace(number: int) -> str:
        if number == replaced:
            pool.recycle()
        return "after" if number == lost else ""

    async with proxy_of(pool) as proxy:
        lost, replaced = 0, 3  # the guest is sent, and then the turn is begun
        pool.fault = replace
        assert (await chat(proxy, "one", turn_id="turn-0001"))[-1]["type"] == "done"
        lost = len(pool.requests) + 2
        replaced = lost + 1
        (told,) = await chat(proxy, "two", turn_id="turn-0002")
        assert "whether it was taken is not known" in told["error"]


async def test_what_an_agent_s_process_is_given_is_never_in_code(pool: SmallPool) -> None:
    secret = "a secret of the environment"
    environ = {"PYTHONPATH": str(PLANTED), "ROOST_TEST_KEY": secret}
    async with proxy_of(pool, environ=environ) as proxy:
        for _ in range(2):
            assert (await chat(proxy, "one"))[-1]["type"] == "done"
        home = pool.container(proxy.identifier("chat-1")).home
        for code in pool.codes:
            given = code.rpartition('("')[2].removesuffix('")')
            assert secret.encode() not in base64.b64decode(given)
        found = [path for path in home.rglob("*") if path.is_file()]
        assert not any(secret.encode() in path.read_bytes() for path in found)
        uploads = [at for at, _ in pool.requests if at.endswith("/files")]
        assert len(uploads) == 1


async def test_a_pool_that_does_not_show_files_to_its_code_is_told(
    pool: SmallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def upload(self: CodePool, *about: Any) -> None:
        return None

    monkeypatch.setattr(CodePool, "upload", upload)
    async with proxy_of(pool) as proxy:
        with pytest.raises(PoolRefused, match="is not in its container"):
            await proxy.get_session_status("chat-1")


async def test_a_keeper_keeps_the_newest_of_two_hosts(tmp_path: Path) -> None:
    one, other = (DirectoryKeeper(tmp_path / "kept") for _ in range(2))
    assert await one.load("chat-1") is None
    await other.save("chat-1", b"six", 6)
    await one.save("chat-1", b"five", 5)
    assert (await one.load("chat-1"), await other.load("chat-2")) == (b"six", None)
    await one.save("chat-1", b"six again", 6)
    await other.save("chat-1", b"ten", 10)
    assert await one.load("chat-1") == b"ten"
    assert len(list((tmp_path / "kept").glob("*.tgz"))) == 1
    assert await one.begin("chat-1", "turn-0001", "here") == "here"
    assert await other.begin("chat-1", "turn-0001", "there") == "here"
    await one.forget("chat-1")
    assert await one.load("chat-1") is None
    assert await one.begin("chat-1", "turn-0001", "there") == "here"


async def test_a_keeper_finds_what_was_kept_before_there_were_versions(tmp_path: Path) -> None:
    keeper = DirectoryKeeper(tmp_path)
    old = tmp_path / f"{hashlib.sha256(b'chat-1').hexdigest()}.tgz"
    old.write_bytes(b"old")
    assert await keeper.load("chat-1") == b"old"
    await keeper.save("chat-1", b"one", 1)
    assert await keeper.load("chat-1") == b"one"
    assert not old.exists()
    old.write_bytes(b"old")
    assert await keeper.load("chat-1") == b"one"
    await keeper.forget("chat-1")
    assert await keeper.load("chat-1") is None
    assert not old.exists()


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0", b"[]", b"\xff"])
async def test_a_keeper_goes_on_though_its_list_of_turns_is_damaged(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = DirectoryKeeper(tmp_path)
    await keeper.begin("chat-1", "turn-1", "here")
    (tmp_path / f"{hashlib.sha256(b'chat-1').hexdigest()}.turns").write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert await keeper.begin("chat-1", "turn-2", "here") == "here"
    assert "which turns were begun cannot be read" in caplog.text
    assert await keeper.begin("chat-1", "turn-2", "there") == "here"


async def test_what_a_keeper_writes_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await DirectoryKeeper(tmp_path).begin("chat-1", "turn-1", "here")
    made, folder = synced
    assert (made.parent, folder) == (tmp_path, tmp_path)
    assert ".turns." in made.name and not made.exists()


async def test_a_keeper_remembers_turns_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "_TURNS", 3)
    keeper = DirectoryKeeper(tmp_path)
    for turn in range(5):
        await keeper.begin("chat-1", f"turn-{turn}", "here")
    assert [await keeper.begin("chat-1", f"turn-{n}", "new") for n in (3, 4, 0)] == [
        "here",
        "here",
        "new",
    ]


HOST = """
import json, sys
import anyio
from roost.client import SessionProxy

async def main():
    url, secret, planted, message = sys.argv[1:]
    proxy = SessionProxy(url, "token", secret=secret, environ={"PYTHONPATH": planted})
    async for event in proxy.stream_sdk_session_chat("chat-1", message, turn_id="turn-0001"):
        print(json.dumps(event), flush=True)

anyio.run(main)
"""


def told_until_killed(pool: SmallPool, message: str) -> list[Json]:
    """What a host in a process of its own tells before it is killed."""
    command = [sys.executable, "-c", HOST, pool.url, SECRET, str(PLANTED), message]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        told = [json.loads(host.stdout.readline()) for _ in range(20)]
        host.kill()
    return told


async def test_another_host_goes_on_where_one_was_killed(pool: SmallPool) -> None:
    message = play(pieces=9999, pause=0.005, until=str(pool.root / "killed"))
    told = await anyio.to_thread.run_sync(told_until_killed, pool, message)
    (pool.root / "killed").touch()
    async with proxy_of(pool) as other:
        with anyio.fail_after(300):
            after = told[-1]["cursor"]
            told += [event async for event in other.follow("chat-1", "turn-0001", after)]
            again = await chat(other, message, turn_id="turn-0001")
    assert [event["cursor"] for event in told] == [event["cursor"] for event in again]
    pieces = sum(event["type"] == "text" for event in told) - 1
    assert text(told) == text(again) and is_whole(told, pieces)
    assert told[-1]["turns"] == again[-1]["turns"] == 1


@pytest.mark.parametrize(
    ("version", "path"),
    [(None, "code/execute"), (OLDER, "code/execute"), ("2025-10-02-preview", "executions")],
)
async def test_the_versions_of_the_api(pool: SmallPool, version: str | None, path: str) -> None:
    async with proxy_of(pool, api_version=version) as proxy:
        await proxy.get_session_status("chat-1")
    for at, query in pool.executed():
        assert at == f"/sessionPools/p/{path}"
        assert query.get("api-version", [None]) == [version]
        assert query["identifier"] == [proxy.identifier("chat-1")]
    assert pool.headers[0]["authorization"] == "Bearer token"


async def test_a_pool_that_knows_older_versions_only(pool: SmallPool) -> None:
    pool.only_old = True
    async with proxy_of(pool) as proxy:
        await proxy.get_session_status("chat-1")
        assert (await proxy.get_session_status("chat-1"))["exists"] is False
    assert [at for at, _ in pool.requests].count("/sessionPools/p/executions") == 1
    assert "/sessionPools/p/files/upload" in [at for at, _ in pool.requests]


async def test_what_a_pool_refuses_is_told(pool: SmallPool) -> None:
    pool.fault = lambda number: "401"
    async with proxy_of(pool) as proxy:
        with pytest.raises(PoolRefused, match="HTTP 401") as refused:
            await proxy.get_session_status("chat-1")
    assert refused.value.status == 401
    pool.fault = lambda number: ""
    code_pool = CodePool(pool.url, "token", patience=0.2)
    try:
        with pytest.raises(PoolRefused, match="ZeroDivisionError"):
            await code_pool.run("some-id", "1/0")
        pool.fault = lambda number: "503"
        with pytest.raises(PoolUnavailable, match="the pool has not worked for too long: HTTP 503"):
            await code_pool.run("some-id", "1+1")
    finally:
        await code_pool.aclose()


def test_identifiers_cannot_be_guessed() -> None:
    one = SessionProxy("http://127.0.0.1", "token", secret=SECRET)
    other = SessionProxy("http://127.0.0.1", "token", secret=f"{SECRET}!")
    assert one.identifier("a") == one.identifier("a") != one.identifier("b")
    assert one.identifier("a") != other.identifier("a") and len(one.identifier("a")) == 54
    with pytest.raises(ValueError, match="at least 16"):
        SessionProxy("http://127.0.0.1", "token", secret="short")


async def test_tokens_of_azure(pool: SmallPool) -> None:
    class Credential:
        def get_token(self, scope: str) -> Any:
            return type("Found", (), {"token": f"for {scope}"})

    code_pool = CodePool(pool.url, azure_token(Credential()))
    try:
        assert await code_pool.run("some-id", "1+1") == 2
    finally:
        await code_pool.aclose()
    assert pool.headers[0]["authorization"] == f"Bearer for {SCOPE}"
