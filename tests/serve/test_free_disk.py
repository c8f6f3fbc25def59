"""A server says that it is not ready before its disk is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.config import Settings
from roost.errors import Unavailable
from roost.serve import wiring
from roost.serve.wiring import _check_room


@pytest.mark.parametrize("short", ["data", "vault", "blobs"])
def test_too_little_room_on_any_disk_that_is_written_to_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str
):
    settings = Settings(
        data=tmp_path / "data", vault=tmp_path / "vault", blobs_url=f"file://{tmp_path}/blobs"
    )
    _check_room(settings)

    def free(folder: Path) -> int:
        return (255 if folder == tmp_path / short else 5000) << 20

    monkeypatch.setattr(wiring, "free", free)
    with pytest.raises(Unavailable, match=f"{short} has 255 MiB free, fewer than 256"):
        _check_room(settings)
    _check_room(settings.model_copy(update={"min_free_disk": 0}))
