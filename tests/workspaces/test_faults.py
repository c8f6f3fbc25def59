"""A blob store that fails in every call in turn, in every way: retried, reported, never believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from tests.workspaces.s3_server import BUCKET, S3Server, s3_server
from tests.workspaces.trees import QUICK, TreeChanger, picture, put_back, tree

from roost.blobs.folder import FolderBlobs
from roost.blobs.s3 import S3Blobs
from roost.blobs.steady import SteadyBlobs
from roost.core.snapshots.garbage import collect
from roost.core.snapshots.snapshots import Snapshots
from roost.errors import BlobsFailed
from roost.ports.blobs import Blobs
from roost.serve.http import listening
from roost.testing.faulty_blobs import FAULTS, Fault, FaultyBlobs

PASSED_ON = (b"etag", b"last-modified", b"content-type", b"content-range")
HTTP_FAULTS = ["500", "503", "slow", "cut", "wrong answer", "wrong question", "answer lost"]


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.core.snapshots.packs.LOAD", 100_000)
    monkeypatch.setattr("roost.core.snapshots.packs.FRAME", 30_000)
    monkeypatch.setattr("roost.core.snapshots.fetch._PAUSE", 0.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=QUICK) as folder:
        yield Path(folder)


async def journey(blobs: Blobs, folder: Path, workspace: str) -> None:
    """Two snapshots, both restored to the last byte, and a collection."""
    home = folder / workspace
    changer = TreeChanger(home, 7)
    snapshots = Snapshots(blobs, keep=1)
    for steps in (25, 5):
        changer.work(steps)
        taken = await snapshots.take(workspace, tree(home), 1)
        head = await snapshots.head(workspace)
        assert head.newest == taken.snapshot
        await put_back(snapshots, taken.snapshot, folder / "again")
        assert picture(folder / "again") == picture(home)
    assert await collect(blobs, workspace) > 0
    await put_back(snapshots, taken.snapshot, folder / "again")
    assert picture(folder / "again") == picture(home)


@pytest.mark.parametrize(
    "every", [3, pytest.param(1, marks=pytest.mark.chaos)], ids=["some", "each"]
)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_in_any_one_call_is_not_noticed(folder: Path, fault: Fault, every: int):
    # Each kind of fault begins with another call, so that together they still come to all of them.
    calls, number = every, FAULTS.index(fault) % every + 1 - every
    while number + every <= calls:
        number += every
        faulty = FaultyBlobs(
            FolderBlobs(folder / "blobs"), lambda n, at=number: fault if n == at else None
        )
        await journey(SteadyBlobs(faulty, pauses=[0, 0]), folder, f"w{number}")
        calls = faulty.calls
    assert calls > 20


@pytest.mark.parametrize("fault", ["refused", "cut", "wrong bytes"])
async def test_a_store_that_stays_broken_is_told_and_changes_nothing(folder: Path, fault: Fault):
    home, good = folder / "home", FolderBlobs(folder / "blobs")
    TreeChanger(home, 3).work(20)
    taken = await Snapshots(good).take("w", tree(home), 1)
    (home / "more").write_bytes(os.urandom(1000))
    broken = Snapshots(SteadyBlobs(FaultyBlobs(good, lambda n: fault), pauses=[0]))
    with pytest.raises(BlobsFailed):
        await broken.take("w", tree(home), 1)
    with pytest.raises(BlobsFailed):
        await put_back(broken, taken.snapshot, folder / "again")
    assert not (folder / "again").exists()
    assert (await Snapshots(good).head("w")).newest == taken.snapshot


class FaultyProxy:
    """Stands between a client and an S3 server. What is to go wrong, goes wrong with one request."""

    def __init__(self, server: S3Server, fault: str, at: int) -> None:
        self.requests = 0
        self._fault = fault
        self._at = at
        self._upstream = httpx2.AsyncClient(base_url=server.url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        fault = self._fault if self.requests == self._at else ""
        request = Request(scope, receive)
        body = await request.body()
        if fault == "wrong question" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault == "slow":
            await anyio.sleep(1.5)
        path = scope["raw_path"].decode() + ("?" + scope["query_string"].decode()).rstrip("?")
        answer = await self._upstream.request(
            request.method, path, content=body, headers=request.headers.raw
        )
        await _send_on(send, answer, fault)


async def _send_on(send: Send, answer: httpx2.Response, fault: str) -> None:
    status, content = answer.status_code, answer.content
    if fault in ("500", "503", "answer lost"):
        status, content = int(fault) if fault.isdigit() else 502, b""
    headers = [(b"content-length", b"%d" % len(content))]
    headers += [(k, v) for k, v in answer.headers.raw if k.lower() in PASSED_ON]
    if fault == "cut":
        content = content[: len(content) // 2]
    if fault == "wrong answer" and content:
        content = content[:-1] + bytes([content[-1] ^ 1])
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.mark.parametrize("fault", HTTP_FAULTS)
async def test_faults_on_the_way_to_s3_are_not_noticed(folder: Path, server: S3Server, fault: str):
    """In a few requests of every journey here; in each of them in turn in the long form."""
    await snapshots_through_faults(folder, server, fault, every=9)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", HTTP_FAULTS)
async def test_faults_in_every_request_to_s3_are_not_noticed(
    folder: Path, server: S3Server, fault: str
):
    await snapshots_through_faults(folder, server, fault, every=1)


async def snapshots_through_faults(folder: Path, server: S3Server, fault: str, every: int) -> None:
    requests, number = 2, 0
    while number < requests:
        number += every if number else 1
        proxy = FaultyProxy(server, fault, number)
        async with proxy._upstream, listening(proxy, "127.0.0.1", 0) as url:
            options = server.options | {"endpoint": url}
            patience = 1.0 if fault == "slow" else 10.0
            s3 = S3Blobs(BUCKET, os.urandom(4).hex(), timeout=patience, **options)
            await journey(SteadyBlobs(s3, pauses=[0.01, 0.1, 1.0]), folder, f"w{number}")
        requests = proxy.requests
    assert requests > 20
