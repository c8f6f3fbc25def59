"""Directories in directories that no path can name, and names that no disk takes: nothing hangs on them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import api_server, error_of, skill_files
from tests.unit.test_archives import CARD, LOG, named, tar_of
from tests.workspaces.trees import put_back, tree

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.browse import Browse
from roost.disk import remove

NAMES = {"deep": ["d"] * 15_000, "long": ["d" * 255] * 200}
FEWER = {"deep": 2000, "long": 15}  # of the names, that a path can have


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory, if that can be: removing so many directories takes a disk half a minute."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 64 << 20:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=memory))
    yield made
    remove(made)


def dig(at: Path, names: list[str]) -> None:
    """Directories in each other, of these names."""
    here = os.open(at, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.mark.parametrize("kind", NAMES)
async def test_a_session_with_such_directories_is_listed_stored_tidied_and_deleted(
    place: Path, kind: str
):
    async with api_server(place) as roost:
        session, names = await roost.session(), NAMES[kind]
        home, files = place / "homes" / session["id"], f"/roost/v1/sessions/{session['id']}/files"
        home.mkdir(parents=True)
        dig(home, names)
        for path in ("", "/".join(names[: FEWER[kind]])):
            found = (await roost.client.get(files, params={"path": path})).json()["data"]
            assert [(each["name"], each["kind"]) for each in found] == [(names[0], "directory")]
        beyond: dict[str, Any] = {"path": "/".join(names[: 2 * FEWER[kind]])}
        for answer in (
            await roost.client.get(files, params=beyond),
            await roost.client.get(f"{files}/content", params=beyond),
            await roost.client.delete(files, params={**beyond, "recursive": "true"}),
            await roost.client.post(f"{files}/directories", json=beyond),
        ):
            assert "path" in error_of(answer, 400)["message"]
        await roost.post(files, files=[("files[]", ("a", b"1"))])  # is stored before the answer
        gone = await roost.client.delete(files, params={"path": names[0], "recursive": "true"})
        assert gone.status_code == 200, gone.text
        assert [each["name"] for each in (await roost.get(files))["data"]] == ["a"]
        dig(home, names)
        assert (await roost.client.delete(f"/v1/sessions/{session['id']}")).status_code == 200
        await roost.deps.services[Browse]._files._remove_all()
        assert not home.exists()


@pytest.mark.parametrize("kind", NAMES)
async def test_a_snapshot_has_what_a_path_can_name_and_is_restored_over_the_rest(
    place: Path, kind: str
):
    home, snapshots = place / "home", Snapshots(FolderBlobs(place / "blobs"))
    home.mkdir()
    dig(home, NAMES[kind])
    taken = await snapshots.take("w", tree(home), 1)
    assert taken.report.counts == {"long_path": 1}
    assert FEWER[kind] <= taken.snapshot.totals.entries <= FEWER[kind] + 100
    await put_back(snapshots, taken.snapshot, home)
    again = await snapshots.take("w", tree(home), 1)
    assert (again.report.counts, again.snapshot.totals) == ({}, taken.snapshot.totals)


@pytest.mark.parametrize(
    "name", ["d/" * 15_000 + "f", "n" * 300, "é" * 200], ids=["deep", "long", "bytes"]
)
async def test_a_name_that_no_disk_takes_is_refused_wherever_it_is_sent(place: Path, name: str):
    async with api_server(place) as roost:
        session = await roost.session()
        files = f"/roost/v1/sessions/{session['id']}/files"
        skill = [*skill_files("greeting"), ("files[]", (f"greeting/{name}", b"x"))]
        archive = tar_of([CARD, LOG, (named(f"files/{name}"), b"")])
        for path, sent in (
            (files, {"files": [("files[]", (name, b"x"))]}),
            (f"{files}/directories", {"json": {"path": name}}),
            ("/v1/skills", {"files": skill}),
            ("/roost/v1/sessions/import", {"files": {"archive": archive}}),
        ):
            error = error_of(await roost.client.post(path, **sent), 400)
            assert error["details"]["error_code"] in ("invalid_request", "bad_archive"), path
        assert (await roost.get(files))["data"] == []
        assert list((place / "transfer").glob("*")) == []
