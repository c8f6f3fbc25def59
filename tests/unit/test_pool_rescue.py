"""Files that are handed over by a container whose server has ended: all of them, or none counts as fetched."""

from __future__ import annotations

import base64
import gzip
import io
import json
import socket
import tarfile
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup

from roost.dynamic_sessions import CodePool, PoolUnavailable
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.pool import PoolProvider, rescue
from roost.sandboxes.pool.claims import HELD, Claim, ContainerClaims
from roost.sandboxes.pool.notes import Notes
from roost.sandboxes.pool.sandbox import PoolSandbox

Json = dict[str, Any]


def archive() -> bytes:
    file = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=file, mode="wb") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as made,
    ):
        member = tarfile.TarInfo("0/note")
        member.size = 3
        made.addfile(member, io.BytesIO(b"cut"))
    return file.getvalue()


DATA = archive()
TOLD: Json = {
    "parts": [["down-1-0", len(DATA), zlib.crc32(DATA)]],
    "gone": [[0, "old"]],
    "kept": ["/workspace"],
}


class FakePool(CodePool):
    """Answers with these, one after the other, and cuts answers off after so many characters."""

    def __init__(self, *told: Json | str | None, most: int = 10**9) -> None:
        self.told = list(told)
        self.most = most

    async def run(self, identifier: str, code: str) -> str:
        await anyio.lowlevel.checkpoint()
        asked = json.loads(base64.b64decode(code.rpartition('("')[2].removesuffix('")')))
        told = self.told[0]
        if told is None:
            raise PoolUnavailable("away")
        if isinstance(told, str):
            del self.told[0]
            return told
        text = base64.b64encode(json.dumps(told).encode()).decode()
        end = asked["after"] + min(asked["most"], self.most)
        if end >= len(text):
            del self.told[0]
        return f"{len(text)}:{text[asked['after'] : end]}"[: self.most]

    async def download(self, identifier: str, folder: str, name: str, most: int) -> bytes:
        assert name == "down-1-0"
        return DATA


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "old").write_text("old")
    volume = LocalVolume(tmp_path)
    return Plan(session_id="sesn_1", generation=2, home=volume, workspace=volume)


async def test_what_is_handed_over_is_put_into_the_volumes(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = plan.home.path
    monkeypatch.setattr(rescue, "_LOOKS", 0)
    assert await rescue.rescued(FakePool({}, {}, TOLD), "id", Claim("token", 1), plan)
    assert {path.name: path.read_text() for path in home.iterdir()} == {"note": "cut"}


async def test_what_is_handed_over_may_be_longer_than_an_answer_of_the_pool_s(plan: Plan) -> None:
    told = TOLD | {"gone": [[0, f"a folder/file {number}"] for number in range(500)]}
    pool = FakePool(told, most=4096)
    assert await rescue.hands_over(pool, "id", Claim("token", 1))
    assert await rescue.rescued(pool, "id", Claim("token", 1), plan)
    assert (plan.home.path / "note").read_text() == "cut"
    assert not await rescue.rescued(FakePool(told, most=100), "id", Claim("token", 1), plan)


def test_the_code_in_the_container_answers_with_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "roost-token").mkdir()
    space: Json = {}
    exec(rescue._ASK.rpartition("_roost_hand_over(")[0], space)
    asked = {"token": "token", "after": 2, "most": 3}
    given = base64.b64encode(json.dumps(asked).encode())
    assert space["_roost_hand_over"](given) == "gone"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "roost-token" / "door"))
        door.listen()

        def answer() -> None:
            stream, _ = door.accept()
            with stream, stream.makefile("rb") as lines:
                lines.readline()
                stream.sendall(b"abcdef")

        with ThreadPoolExecutor() as threads:
            threads.submit(answer)
            assert (
                space["_roost_hand_over"](given) == f"8:{base64.b64encode(b'abcdef').decode()[2:5]}"
            )


@pytest.mark.parametrize(
    "told",
    [
        "gone",
        "4:W10=",
        "0:",
        f"{10**9}:W10=",
        "4" * 5000 + ":W10=",
        None,
        {"failed": "there is no room"},
        TOLD | {"kept": ["/elsewhere"]},
        TOLD | {"parts": 5},
        TOLD | {"parts": [["down-1-0", 2**40, 0]]},
        TOLD | {"gone": [[7, "old"]]},
    ],
)
async def test_what_is_not_handed_over_whole_is_lost(plan: Plan, told: Json | str | None) -> None:
    assert not await rescue.rescued(FakePool(told), "id", Claim("token", 1), plan)


class Killed(BaseException):
    """Stands for the end of the server: nothing of it runs any more."""


class HeldPool(FakePool):
    """Has a container of an older lease until it was ended so often; the server `dies` at a step."""

    def __init__(self, claim: Claim, *told: Json | str, ends: int = 1, dies: str = "") -> None:
        super().__init__(*told)
        self.claim = claim
        self.ends = ends
        self.dies = dies

    async def run(self, identifier: str, code: str) -> str:
        if "_roost_hand_over" in code:
            self._step("fetch")
            return await super().run(identifier, code)
        if self.ends > 0:
            return HELD + json.dumps(self.claim._asdict())
        self._step("launch")
        return "door:/door"

    async def end(self, identifier: str) -> None:
        self._step("end")
        self.ends -= 1

    def _step(self, name: str) -> None:
        if self.dies == name:
            raise Killed


class Left:
    """A session whose server has left a container with files."""

    def __init__(self, plan: Plan, notes: Path) -> None:
        self.plan = plan
        self.made = PoolProvider(
            endpoint="http://127.0.0.1:9", token="token", secret="s" * 16, notes=notes
        )
        identifier = self.made.identifier(plan.session_id)
        self.claim = ContainerClaims(b"s" * 16, identifier).make(1)
        Notes(notes).opened(identifier, "before")
        Notes(notes).mark(identifier, "before", is_changed=True)

    async def is_behind(self, *told: Json | str, ends: int = 1, dies: str = "") -> bool:
        """Open the next sandbox: whether it lacks files."""
        pool = HeldPool(self.claim, *told, ends=ends, dies=dies)
        made = await self.made._make(self.plan, pool, cast("TaskGroup", None))
        assert pool.told == []
        return made.is_behind


@pytest.fixture
def left(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Left:
    async def begin(self: PoolSandbox) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(PoolSandbox, "begin", begin)
    return Left(plan, tmp_path_factory.mktemp("left") / "notes")


@pytest.mark.parametrize(
    ("dies", "ends", "again"), [("fetch", 1, [TOLD]), ("end", 1, []), ("launch", 0, [])]
)
async def test_a_server_that_dies_while_it_fetches_leaves_the_files_to_the_next_one(
    left: Left, dies: str, ends: int, again: list[Json]
) -> None:
    with pytest.raises(Killed):
        await left.is_behind(TOLD, dies=dies)
    assert not await left.is_behind(*again, ends=ends)
    assert (left.plan.home.path / "note").read_text() == "cut"
    assert not await left.is_behind(ends=0)


@pytest.mark.parametrize("dies", ["end", "launch"])
async def test_files_that_are_lost_are_lost_whoever_dies_meanwhile(left: Left, dies: str) -> None:
    with pytest.raises(Killed):
        await left.is_behind("gone", dies=dies)
    assert await left.is_behind(ends=0)
    assert await left.is_behind()  # until the agent knows


async def test_files_that_were_fetched_are_there_though_the_container_has_to_be_ended_twice(
    left: Left,
) -> None:
    assert not await left.is_behind(TOLD, ends=2)
