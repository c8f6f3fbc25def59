"""The two streams to a container, whatever the pool makes of answers."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from roost.dynamic_sessions import (
    NEWEST,
    OLDER,
    CodePool,
    PoolAnswer,
    PoolRefused,
    PoolUnavailable,
)
from roost.guest import commands
from roost.sandboxes.pool import link as links
from roost.sandboxes.pool.link import HEADER, PIECE, Link

Json = dict[str, Any]


class FakePool(CodePool):
    """Stands for a pool and the program in it: `spoil` is what becomes of an answer, by its number."""

    def __init__(
        self, data: bytes, spoil: Callable[[int, str], str] = lambda n, text: text
    ) -> None:
        self.data = data
        self.spoil = spoil
        self.files: dict[str, bytes] = {}
        self.damaged = 0
        self.asked: list[Json] = []

    async def run(self, identifier: str, code: str) -> str:
        await anyio.lowlevel.checkpoint()
        found = re.search(r'"([A-Za-z0-9+/=]+)"\)$', code)
        assert found is not None
        asked = json.loads(base64.b64decode(found[1]))
        self.asked.append(asked)
        data = self.data[asked["after"] :]
        if not data:
            return "gone"
        head: Json = {"sum": zlib.crc32(data), "size": len(data)}
        if len(data) > asked["most"]:
            self.files["out-0"], head["file"], data = data, "out-0", b""
        text = base64.b64encode(json.dumps(head).encode() + b"\n" + data).decode()
        return self.spoil(len(self.asked), f"{len(text)}:{text}")

    async def upload(self, identifier: str, folder: str, name: str, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.files[name] = data

    async def download(self, identifier: str, folder: str, name: str, most: int) -> bytes:
        if self.damaged:
            self.damaged -= 1
            return self.files[name][1:]
        return self.files[name]


async def taken(pool: FakePool, **sent: bytes) -> tuple[list[tuple[bytes, int, bytes]], Link]:
    link = Link(pool, "id", "folder", "/door")
    frames: list[tuple[bytes, int, bytes]] = []
    for data in sent.values():
        link.put(b"I", 2, data)
    with anyio.fail_after(60):
        await link.run(lambda *frame: frames.append(frame))
    return frames, link


def sized(data: bytes) -> str:
    text = base64.b64encode(data).decode()
    return f"{len(text)}:{text}"


def frame(data: bytes, channel: int = 2) -> bytes:
    return HEADER.pack(b"O", channel, len(data)) + data


def test_both_sides_speak_the_same_language() -> None:
    assert (HEADER.format, PIECE.format) == (commands.HEADER.format, commands.PIECE.format)
    assert links.EXCHANGE == commands.EXCHANGE


async def test_frames_arrive_whole_and_the_end_is_said() -> None:
    frames, link = await taken(FakePool(frame(b"one") + frame(b"two", 4)))
    assert frames == [(b"O", 2, b"one"), (b"O", 4, b"two")]
    assert link.failure == "the container was replaced, or has ended"


async def test_answers_that_are_cut_are_asked_for_as_files() -> None:
    pool = FakePool(frame(b"x" * 10_000), lambda n, text: text[:4096])
    pool.damaged = 2
    frames, _ = await taken(pool)
    assert frames == [(b"O", 2, b"x" * 10_000)]
    assert [each["most"] for each in pool.asked[:2]] == [48 * 1024, 2000]


async def test_a_pool_that_does_not_wait_is_asked_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(round(seconds, 2))

    monkeypatch.setattr(links.anyio, "sleep", sleep)
    nothing = sized(json.dumps({"sum": zlib.crc32(b""), "size": 0}).encode() + b"\n")
    pool = FakePool(frame(b"one"), lambda n, text: text if n in (8, 10) else nothing)
    assert (await taken(pool))[0] == [(b"O", 2, b"one")]
    assert paused == [0.05, 0.15, 0.35, 0.75, 1.55, 2.0, 2.0, 0.0]


async def test_an_answer_that_is_damaged_is_asked_for_again() -> None:
    nothing = base64.b64encode(b"").decode()
    pool = FakePool(frame(b"one"), lambda n, text: f"0:{nothing}" if n == 1 else text)
    assert (await taken(pool))[0] == [(b"O", 2, b"one")]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda n, text: "hello", "answers with something else"),
        (lambda n, text: "0:", "answers are damaged"),
        (lambda n, text: text[:-1], "answers are damaged"),
        (lambda n, text: sized(b"[" * 30_000), "answers are damaged"),
        (lambda n, text: sized(b'{"file": "x", "size": Infinity}'), "answers are damaged"),
    ],
)
async def test_a_pool_that_says_something_else_is_given_up(
    spoil: Callable[[int, str], str], said: str
) -> None:
    _, link = await taken(FakePool(frame(b"one"), spoil))
    assert said in str(link.failure)


async def test_a_file_that_stays_damaged_is_given_up() -> None:
    pool = FakePool(frame(b"x" * 100_000))
    pool.damaged = 100
    assert "was damaged" in str((await taken(pool))[1].failure)


async def test_what_is_sent_has_numbers_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_MOST_AT_ONCE", 12)
    pool = FakePool(b"")
    link = Link(pool, "id", "folder", "/door")
    link.put(b"I", 2, b"some bytes")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link._send)
        while len(pool.files) < 2:  # noqa: ASYNC110 - it is another task that sends
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    parts = [pool.files[f"in-{number:08d}"] for number in (1, 2)]
    for part in parts:
        data = part[PIECE.size :]
        assert PIECE.unpack_from(part) == (zlib.crc32(data), len(data))
    whole = b"".join(part[PIECE.size :] for part in parts)
    assert whole == HEADER.pack(b"I", 2, 10) + b"some bytes"


@pytest.mark.parametrize(
    "name", ["../x", "out-0/../x", "out-0?a=b", "out-\u0661", "down-1", "in-1"]
)
async def test_only_files_that_the_other_side_makes_are_fetched(name: str) -> None:
    link = Link(FakePool(b""), "id", "folder", "/door")
    with pytest.raises(PoolRefused, match="names a file"):
        await link.file(name, 1, 0)


async def test_a_file_s_name_stays_a_name_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def sent(self: CodePool, method: str, identifier: str, path: str, *more: Any) -> Any:
        asked.append(path)
        return PoolAnswer(200, "", b"")

    monkeypatch.setattr(CodePool, "_sent", sent)
    for version in (NEWEST, OLDER):
        pool = CodePool("http://127.0.0.1:9", "token", api_version=version)
        await pool.download("id", "a folder/in", "../x?y#z/", 1)
        await pool.aclose()
    assert asked == [
        "files/..%2Fx%3Fy%23z%2F/content",
        "files/content/a%20folder/in/..%2Fx%3Fy%23z%2F",
    ]


@pytest.mark.parametrize("error", [PoolUnavailable("away"), PoolRefused("no")])
async def test_a_pool_that_fails_is_the_end(error: Exception) -> None:
    class Failing(FakePool):
        async def run(self, identifier: str, code: str) -> str:
            raise error

    _, link = await taken(Failing(b""))
    assert link.failure == f"the pool failed: {error}"
    assert link.ended.is_set()


async def test_a_frame_that_is_too_long_or_makes_no_sense_is_the_end() -> None:
    _, link = await taken(FakePool(HEADER.pack(b"O", 2, 2**31)))
    assert "a frame of 2147483648 bytes" in str(link.failure)
    link = Link(FakePool(frame(b"one")), "id", "folder", "/door")

    def refuse(*about: object) -> None:
        raise ValueError("not a number")

    await link.run(refuse)
    assert "not a number" in str(link.failure)
    link = Link(FakePool(frame(b"[" * 100_000)), "id", "folder", "/door")
    await link.run(lambda kind, channel, data: json.loads(data))
    assert "something else" in str(link.failure)
