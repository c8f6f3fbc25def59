"""What a container says is not believed: whatever it is, a sandbox is closed, and the server keeps its limits."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from roost.dynamic_sessions import CodePool
from roost.errors import FilesNotFetched, SandboxFailed, SandboxUnavailable
from roost.ports.sandbox_provider import Endpoint, LocalVolume, Plan, SandboxLimits, UnixAddress
from roost.sandboxes.pool import PoolProvider
from roost.sandboxes.pool import sandbox as sandboxes
from roost.sandboxes.pool.claims import HELD, ContainerClaims
from roost.sandboxes.pool.link import Link
from roost.sandboxes.pool.notes import Notes
from roost.sandboxes.pool.sandbox import PoolSandbox, Rented

Json = dict[str, Any]
Answers = dict[str, Json | None]
IDENTIFIER = "roost-1"
CLAIMS = ContainerClaims(b"a secret", IDENTIFIER)
CLAIM = CLAIMS.make(1)
NOTHING: Json = {"parts": [], "gone": []}


class FakePool(CodePool):
    """Has this sandbox's container, until it is ended."""

    def __init__(self) -> None:
        self.ended = 0

    async def run(self, identifier: str, code: str) -> str:
        await anyio.lowlevel.checkpoint()
        return HELD + json.dumps(CLAIM._asdict())

    async def end(self, identifier: str) -> None:
        self.ended += 1


class FakeLink(Link):
    """Stands for a container that answers each question with what it is given; None: not at all."""

    def __init__(self, pool: CodePool, answers: Answers) -> None:
        super().__init__(pool, IDENTIFIER, "folder", "/door")
        self.answers: Answers = {
            "stop": {},
            "stats": {},
            "unpack": {},
            "packed": {},
            "pack": NOTHING,
            **answers,
        }
        self.take: Callable[[bytes, int, bytes], None] = lambda *frame: None
        self.sent: list[tuple[bytes, int]] = []
        self.files: dict[str, bytes] = {}
        self.fetched: list[str] = []

    def put(self, kind: bytes, channel: int, data: bytes = b"") -> None:
        self.sent.append((kind, channel))
        if kind == b"S":
            self.take(b"F", channel, b"no such program")
        told = self.answers[json.loads(data)["do"]] if kind == b"Q" else None
        if told is not None:
            self.take(b"A", channel, json.dumps(told).encode())

    async def put_file(self, name: str, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()

    async def file(self, name: str, size: int, check: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        self.fetched.append(name)
        return self.files[name]

    async def run(self, take: Callable[[bytes, int, bytes], None]) -> None:
        self.take = take
        take(b"H", 0, b"{}")
        try:
            with self._scope:
                await anyio.sleep_forever()
        finally:
            self.ended.set()


class Provider(PoolProvider):
    """Opens sandboxes with such containers."""

    def __init__(self, folder: Path, answers: Answers) -> None:
        super().__init__(
            endpoint="http://127.0.0.1:9", token="token", secret="s" * 16, notes=folder / "notes"
        )
        self.folder = folder
        self.pool = FakePool()
        self.link = FakeLink(self.pool, answers)

    async def _make(self, plan: Plan, pool: CodePool, tasks: TaskGroup) -> PoolSandbox:
        notes = Notes(self.folder / "notes")
        notes.opened(IDENTIFIER, "name")
        rented = Rented(self.pool, IDENTIFIER, notes, "name", CLAIMS, CLAIM)
        made = PoolSandbox(plan, rented, self.link, tasks)
        try:
            await made.begin()
        except BaseException:
            made.close()
            raise
        return made

    @asynccontextmanager
    async def opened(self, disk_bytes: int = 0) -> AsyncGenerator[PoolSandbox, None]:
        volume = LocalVolume(self.folder / "home")
        volume.path.mkdir(exist_ok=True)
        limits = SandboxLimits(disk_bytes=disk_bytes)
        nobody = Endpoint(address=UnixAddress(self.folder / "nobody"), socket="/run/roost/x.sock")
        plan = Plan(
            session_id="sesn_1",
            generation=1,
            home=volume,
            workspace=volume,
            endpoints=[nobody],
            limits=limits,
        )
        async with self.open(plan) as sandbox:
            assert isinstance(sandbox, PoolSandbox)
            yield sandbox


@pytest.mark.parametrize(
    "told",
    [
        {"parts": [], "gone": [[float("inf"), "x"]]},
        {"parts": [["down-1-0", float("inf"), 0]], "gone": []},
        {"parts": 5, "gone": []},
        {"parts": [[]], "gone": []},
        {},
    ],
)
async def test_a_sandbox_is_closed_whatever_its_container_answers(
    tmp_path: Path, told: Json, caplog: pytest.LogCaptureFixture
) -> None:
    made = Provider(tmp_path, {"pack": told})
    with caplog.at_level(logging.WARNING):
        async with made.opened() as sandbox:
            with pytest.raises(FilesNotFetched):
                await sandbox.bring_back()
    assert made.link.ended.is_set()
    assert made.pool.ended == 1
    assert "files are left in a pool" in caplog.text


async def test_the_link_ends_with_its_sandbox_also_if_that_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Provider(tmp_path, {})

    async def fail(self: PoolSandbox) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(PoolSandbox, "stop", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        async with made.opened():
            pass
    assert made.link.ended.is_set()


async def test_a_fault_while_files_come_back_does_not_leave_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Provider(tmp_path, {})

    async def fail(self: PoolSandbox) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(PoolSandbox, "_fetch", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        async with made.opened():
            pass
    assert made.pool.ended == 1


_LARGE = 32 * 1024**2


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([[f"down-1-{number}", _LARGE, 0] for number in range(3)], "limit of the disk"),
        ([["down-1-0", 10, 0], ["down-1-0", 10, 0]], "a part twice"),
        ([["down-1-0", 0, 0]], "parts that cannot be"),
        ([["down-1-0", _LARGE + 1, 0]], "parts that cannot be"),
    ],
)
async def test_parts_that_cannot_be_are_not_fetched(
    tmp_path: Path, parts: list[list[object]], said: str
) -> None:
    made = Provider(tmp_path, {"pack": {"parts": parts, "gone": []}})
    async with made.opened(disk_bytes=_LARGE) as sandbox:
        with pytest.raises(FilesNotFetched, match=said):
            await sandbox.bring_back()
    assert made.link.fetched == []


async def test_files_are_lost_only_if_their_container_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Provider(tmp_path, {"pack": {"failed": "there is no room"}})
    async with made.opened() as sandbox:
        with pytest.raises(FilesNotFetched, match="there is no room"):
            await sandbox.bring_back()
        made.link.answers["stats"] = None
        monkeypatch.setattr(sandboxes, "_SECONDS_TO_ANSWER", 0.05)
        with pytest.raises(SandboxFailed, match="does not answer") as lost:
            await sandbox.bring_back()
        assert not isinstance(lost.value, FilesNotFetched)


async def test_files_that_never_come_are_waited_for_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Provider(tmp_path, {"pack": None})
    with caplog.at_level(logging.WARNING):
        async with made.opened() as sandbox:
            monkeypatch.setattr(sandboxes, "_SECONDS_TO_STOP", 0.05)
            with pytest.raises(FilesNotFetched, match="did not come within 0 seconds"):
                await sandbox.bring_back()
    assert "files are left in a pool: " in caplog.text
    assert made.pool.ended == 1


async def test_a_container_that_is_never_filled_is_given_up_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "_SECONDS_TO_STOP", 0.05)
    with pytest.raises(SandboxUnavailable, match="not be filled within 0 seconds"):
        async with Provider(tmp_path, {"unpack": None}).opened():
            pass


async def test_a_container_begins_nothing_under_the_server_s_numbers(tmp_path: Path) -> None:
    made = Provider(tmp_path, {})
    async with made.opened():
        made.link.take(b"C", 3, b"0")
        for channel in (0, 4):
            with pytest.raises(ValueError, match="cannot be"):
                made.link.take(b"C", channel, b"0")


async def test_commands_that_are_refused_are_not_kept(tmp_path: Path) -> None:
    async with Provider(tmp_path, {}).opened() as sandbox:
        for _ in range(3):
            with pytest.raises(SandboxFailed, match="no such program"):
                await sandbox.spawn(["nothing"])
        assert sandbox._channels == {}
