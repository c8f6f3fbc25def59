"""The blob store is the database's own, or the server does not start."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest
from msgspec.structs import replace
from tests.workspaces.s3_server import BUCKET, S3Server, s3_server

from roost.blobs.folder import FolderBlobs
from roost.blobs.guarded import GuardedBlobs
from roost.blobs.s3 import S3Blobs
from roost.core.files.installation import Installation
from roost.core.snapshots.packs import seal
from roost.disk import remove
from roost.domain.file import FilePart, StoredFile, part_key
from roost.domain.skill import skill_key
from roost.domain.snapshot import Head, head_key
from roost.errors import BlobsFailed, Unavailable, WrongBlobs
from roost.ids import mint
from roost.ports.blobs import Blobs
from roost.ports.catalog import Kind
from roost.stores.sqlite import SqliteStore
from roost.testing.faulty_blobs import FaultyBlobs


class Killed(BaseException):
    """The process dies here."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        yield store


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return FolderBlobs(tmp_path / "blobs")


def of(store: SqliteStore, blobs: Blobs) -> Installation:
    return Installation(store.catalog, store.workspaces, blobs)


async def stored(store: SqliteStore, blobs: Blobs | None, workspace: str = "sesn_1") -> None:
    """A workspace that has a snapshot, as the database knows; in this store, if there is one."""
    row = await store.workspaces.hold(workspace, "copy_1", 1)
    await store.workspaces.note(replace(row, sequence=3))
    if blobs is not None:
        await blobs.swap(head_key(workspace), seal(Head(sequence=3)), None)


async def kept(store: SqliteStore, blobs: Blobs | None, kind: Kind) -> None:
    """A file or a skill that the database names, of a tenant of its own; in this store, if there is one."""
    thing, tenant = mint(kind), mint("tenant")
    if kind == "file":
        key = part_key(thing, 0)
        body = StoredFile(filename="a", mime_type="text/plain", parts=(FilePart(1, ""),)).body
    else:
        version = mint("skillver")
        key, body = skill_key(version), {"name": "a", "versions": [{"id": version}]}
    await store.catalog.add(kind, tenant, thing, body, unique_name=False)
    if blobs is not None:
        await blobs.put(key, b"x")


@pytest.mark.parametrize("kind", ["file", "skill"])
async def test_a_store_that_lacks_files_and_skills_is_an_empty_one_too(
    store: SqliteStore, blobs: Blobs, tmp_path: Path, kind: Kind
):
    await of(store, blobs).check()
    await kept(store, blobs, kind)
    await kept(store, None, kind)
    empty = FolderBlobs(tmp_path / "empty")
    with pytest.raises(WrongBlobs, match="nothing of what"):
        await of(store, empty).check()
    assert await empty.list("") == []
    await of(store, blobs).check()


async def test_files_without_a_byte_are_in_every_store(store: SqliteStore, blobs: Blobs):
    body = StoredFile(filename="a", mime_type="text/plain").body
    await store.catalog.add("file", "tenant_1", mint("file"), body, unique_name=False)
    await of(store, blobs).check()


@pytest.mark.parametrize("other", [None, b'{"id":"inst_another"}'], ids=["empty", "another"])
async def test_a_store_that_becomes_a_wrong_one_is_noticed_and_so_is_the_right_one(
    store: SqliteStore, tmp_path: Path, other: bytes | None
):
    folder = tmp_path / "blobs"
    mine = of(store, FolderBlobs(folder))
    await mine.start()
    guarded = GuardedBlobs(FolderBlobs(folder), mine.check)
    await guarded.put("files/a", b"x")
    folder.rename(tmp_path / "right")
    if other is not None:
        await FolderBlobs(folder).swap("installation", other, None)
    before = await FolderBlobs(folder).list("")
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: guarded.put("files/b", b"x"),
        lambda: guarded.swap("head", b"x", None),
        lambda: guarded.delete(["files/a"]),
        lambda: guarded.delete([]),
        lambda: guarded.get("files/a"),
        lambda: guarded.read("head"),
        lambda: guarded.list("files/"),
    ]
    for ask in asked:
        with pytest.raises(WrongBlobs):
            await ask()
    with pytest.raises(Unavailable):
        mine.ready()
    assert await FolderBlobs(folder).list("") == before
    remove(folder)
    (tmp_path / "right").rename(folder)
    assert await guarded.get("files/a") == b"x"
    await guarded.delete([])
    mine.ready()


async def test_a_new_store_is_the_databases_from_then_on(store: SqliteStore, blobs: Blobs):
    await of(store, blobs).check()
    await of(store, blobs).check()
    found = await blobs.read("installation")
    assert found is not None
    assert b"inst_" in found.data


async def test_another_installations_store_is_refused(
    store: SqliteStore, blobs: Blobs, tmp_path: Path
):
    await of(store, blobs).check()
    async with SqliteStore.open(tmp_path / "other.db") as other:
        with pytest.raises(WrongBlobs, match="another installation"):
            await of(other, blobs).check()
        await of(other, FolderBlobs(tmp_path / "others")).check()
        with pytest.raises(WrongBlobs, match="another installation"):
            await of(other, blobs).check()


@pytest.mark.parametrize("known", [False, True], ids=["without an id", "with an id"])
async def test_an_empty_store_is_refused_where_the_database_names_snapshots(
    store: SqliteStore, blobs: Blobs, tmp_path: Path, known: bool
):
    await stored(store, blobs)
    if known:
        await of(store, blobs).check()
    empty = FolderBlobs(tmp_path / "empty")
    with pytest.raises(WrongBlobs, match="nothing of what"):
        await of(store, empty).check()
    assert await empty.list("") == []


async def test_an_installation_from_before_there_were_ids_gets_one(
    store: SqliteStore, blobs: Blobs
):
    await stored(store, None, "sesn_2")  # of one, the snapshots are lost
    await stored(store, blobs)
    await of(store, blobs).check()
    assert await blobs.read("installation") is not None


@pytest.mark.parametrize("expects", [False, True])
async def test_dying_between_the_two_writes_is_made_good_by_the_next_start(
    store: SqliteStore, blobs: Blobs, expects: bool
):
    if expects:
        await stored(store, blobs)

    class Dying(FolderBlobs):
        async def swap(self, key: str, data: bytes, version: str | None) -> str:
            raise Killed

    with pytest.raises(Killed):
        await of(store, Dying(blobs._folder)).check()  # type: ignore[attr-defined]
    assert await blobs.read("installation") is None
    await of(store, blobs).check()
    assert await blobs.read("installation") is not None


async def test_of_several_nodes_that_start_at_once_all_agree(store: SqliteStore, blobs: Blobs):
    async with anyio.create_task_group() as nodes:
        for _ in range(8):
            nodes.start_soon(of(store, blobs).check)
    await of(store, blobs).check()


async def test_the_operator_may_adopt_a_store_and_give_up_what_it_lacks(
    store: SqliteStore, blobs: Blobs, tmp_path: Path
):
    await stored(store, blobs)
    await of(store, blobs).check()
    other = FolderBlobs(tmp_path / "other")
    await other.swap("installation", b'{"id":"inst_another"}', None)
    with pytest.raises(WrongBlobs):
        await of(store, other).check()
    await kept(store, other, "file")
    await kept(store, None, "file")
    await kept(store, None, "skill")
    found = {"files": 1}, {"workspaces": 1, "files": 1, "skills": 1}
    assert await of(store, other).adopt(lost=False) == found
    await of(store, other).check()
    assert len(await store.workspaces.stored(limit=9)) == 1
    assert await of(store, other).adopt(lost=True) == found
    assert await store.workspaces.stored(limit=9) == []
    assert len(await store.catalog.every("file", limit=9)) == 1
    assert [skill.body["versions"] for skill in await store.catalog.every("skill", limit=9)] == [[]]
    assert await of(store, other).adopt(lost=True) == ({"files": 1}, {})


async def test_a_store_that_is_away_is_looked_at_again_and_until_then_nothing_is_ready(
    store: SqliteStore, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.files.installation._LOOK_AGAIN", 0.01)
    away = True
    faulty = FaultyBlobs(blobs, lambda _: "refused" if away else None)
    mine = of(store, faulty)
    with pytest.raises(BlobsFailed):
        await mine.check()
    await mine.start()
    with pytest.raises(Unavailable, match="does not answer"):
        mine.ready()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.run)
        await anyio.sleep(0.05)
        away = False
        await until_ready(mine)
        tasks.cancel_scope.cancel()


async def until_ready(mine: Installation) -> None:
    with anyio.fail_after(60):
        while True:
            try:
                return mine.ready()
            except Unavailable:
                await anyio.sleep(0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


async def test_a_bucket_has_an_id_too(store: SqliteStore, tmp_path: Path, server: S3Server):
    ours = S3Blobs(BUCKET, "ours", **server.options)
    await of(store, ours).check()
    await of(store, ours).check()
    async with SqliteStore.open(tmp_path / "other.db") as other:
        with pytest.raises(WrongBlobs):
            await of(other, ours).check()


async def test_a_bucket_that_was_emptied_takes_nothing_and_loses_nothing(
    store: SqliteStore, server: S3Server
):
    bucket = S3Blobs(BUCKET, "emptied", **server.options)
    mine = of(store, bucket)
    await mine.start()
    guarded = GuardedBlobs(bucket, mine.check)
    await guarded.put("files/a", b"x")
    await bucket.delete(["installation", "files/a"])
    for ask in (guarded.put("files/b", b"x"), guarded.get("files/a"), guarded.delete(["files/a"])):
        with pytest.raises(WrongBlobs):
            await ask
    assert await bucket.list("") == []


async def test_a_server_does_not_start_with_a_store_that_is_not_its_own(tmp_path: Path):
    blobs = FolderBlobs(tmp_path / "blobs")
    await blobs.swap("installation", b'{"id":"inst_another"}', None)
    refused = await roost(tmp_path, "serve", "--port", "0")
    assert refused.returncode == 3
    said = refused.stderr.decode()
    assert "belongs to another installation: inst_another" in said
    assert "roost blobs adopt" in said
    assert "Traceback" not in said
    adopted = await roost(tmp_path, "blobs", "adopt")
    assert b"snapshots of 0 workspaces, 0 files and 0 versions of skills" in adopted.stdout
    found = await blobs.read("installation")
    assert found is not None
    assert b"inst_another" not in found.data


async def roost(folder: Path, *words: str) -> CompletedProcess[bytes]:
    environ = {"ROOST_DATA": f"{folder}/data", "ROOST_BLOBS_URL": f"file://{folder}/blobs"}
    command = [sys.executable, "-m", "roost", *words]
    return await anyio.run_process(command, env={**os.environ, **environ}, check=False)
