"""Every blob store keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.workspaces.s3_server import BUCKET, S3Server, free_ports, s3_server

from roost.blobs.choice import chosen
from roost.blobs.folder import FolderBlobs
from roost.blobs.s3 import S3Blobs
from roost.blobs.steady import SteadyBlobs
from roost.config import Settings
from roost.errors import BlobsFailed, StartupError
from roost.ports.blobs import Blobs
from roost.testing.blobs_contract import BlobsContract, FolderBlobsContract


class TestFolder(FolderBlobsContract):
    @pytest.fixture
    def opened(self) -> Callable[[Path], Blobs]:
        return FolderBlobs

    @pytest.mark.parametrize("key", ["../out", "/etc/passwd", "a//b", "a/./b", "", ".lock"])
    async def test_a_key_leads_nowhere_else(self, blobs: Blobs, key: str):
        with pytest.raises(BlobsFailed):
            await blobs.put(key, b"")
        with pytest.raises(BlobsFailed):
            await blobs.get(key)


class TestSteadyFolder(FolderBlobsContract):
    @pytest.fixture
    def opened(self) -> Callable[[Path], Blobs]:
        return lambda folder: SteadyBlobs(FolderBlobs(folder), pauses=[0, 0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


class TestS3(BlobsContract):
    @pytest.fixture
    async def blobs(self, server: S3Server) -> Blobs:
        return S3Blobs(BUCKET, "some/prefix", **server.options)

    async def test_a_wrong_secret_opens_nothing(self, server: S3Server):
        thief = S3Blobs(BUCKET, **(server.options | {"secret_access_key": "guessed"}))
        with pytest.raises(BlobsFailed):
            await thief.put("object", b"")
        with pytest.raises(BlobsFailed):
            await thief.list("")

    async def test_nobody_listening_is_told_as_what_it_is(self, server: S3Server):
        (port,) = free_ports(1)
        options = server.options | {"endpoint": f"http://127.0.0.1:{port}"}
        with pytest.raises(BlobsFailed):
            await S3Blobs(BUCKET, **options).get("object")


@pytest.mark.parametrize(
    "url", ["s3://[bucket", "s3:///prefix", "file://host/path", "ftp://x", "x"]
)
def test_an_address_that_is_no_stores_stops_the_start_with_a_hint(url: str) -> None:
    with pytest.raises(StartupError, match="ROOST_BLOBS_URL") as said:
        chosen(Settings(blobs_url=url))
    assert "s3://BUCKET" in (said.value.hint or "")
