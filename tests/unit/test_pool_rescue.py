"""Files that are handed over by a container whose server has ended: all of them, or none counts as fetched."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from roost.dynamic_sessions import CodePool, PoolUnavailable
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.pool import rescue
from roost.sandboxes.pool.claims import Claim

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
    """Answers with these, one after the other."""

    def __init__(self, *told: Json | str | None) -> None:
        self.told = list(told)

    async def run(self, identifier: str, code: str) -> str:
        await anyio.lowlevel.checkpoint()
        told = self.told.pop(0)
        if told is None:
            raise PoolUnavailable("away")
        if isinstance(told, str):
            return told
        return "told:" + base64.b64encode(json.dumps(told).encode()).decode()

    async def download(self, identifier: str, folder: str, name: str, most: int) -> bytes:
        assert (folder, name) == ("roost-exchange/token", "down-1-0")
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


@pytest.mark.parametrize(
    "told",
    [
        "gone",
        "told:W10=",
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
