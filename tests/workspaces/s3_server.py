"""A real S3 API server for tests: SeaweedFS, on free ports, with a key of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from tests.parts import need

from roost.blobs.s3 import S3Blobs
from roost.errors import BlobsFailed

WEED = Path(__file__).parents[2] / ".tools" / "s3-4.48" / "bin" / "weed"
BUCKET = "snapshots"
_STARTS = 3


class _NotUp(AssertionError):
    """It does not take objects, and its log says why."""


@dataclass(frozen=True)
class S3Server:
    url: str
    pid: int
    key: str = "test-access-key"
    secret: str = "test-secret-key"

    @property
    def options(self) -> dict[str, str]:
        """What `S3Blobs` takes."""
        return {
            "endpoint": self.url,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": "us-east-1",
        }

    @property
    def environ(self) -> dict[str, str]:
        """What a server's environment needs."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server with one bucket, for as long as the context lasts."""
    need("SeaweedFS", WEED.exists(), "scripts/install-test-parts s3-4.48")
    folder.mkdir(parents=True, exist_ok=True)
    server = S3Server("", 0)
    keys = [{"accessKey": server.key, "secretKey": server.secret}]
    who = {"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    for _ in range(_STARTS - 1):
        with suppress(_NotUp), _started(folder) as running:
            yield running
            return
    with _started(folder) as running:
        yield running


@contextmanager
def _started(folder: Path) -> Iterator[S3Server]:
    """One try: a port that was free may be another's by the time that it is listened on."""
    ports = free_ports(8)
    command = [str(WEED), "-logtostderr=true", "server", "-s3", *_options(folder, ports)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        running = S3Server(url, process.pid)
        _until_it_takes_an_object(running, process, folder / "log")
        yield running
    finally:
        process.send_signal(signal.SIGKILL)  # it may not listen to anything gentler
        process.wait()
        for port in ports:  # it puts these where it likes
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                left.unlink(missing_ok=True)


def _options(folder: Path, ports: list[int]) -> list[str]:
    names = ["s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc", "volume.port"]
    names += ["volume.port.grpc", "master.port", "master.port.grpc"]
    options = {
        **dict(zip(names, ports, strict=True)),
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.config": folder / "s3.json",
        "s3.localSocket": folder / "s3.sock",
        "filer.localSocket": folder / "filer.sock",
        "volume.max": 50,
        "master.volumeSizeLimitMB": 64,
        "master.telemetry": "false",
    }
    return [f"-{name}={value}" for name, value in options.items()]


def _until_it_takes_an_object(
    server: S3Server, process: subprocess.Popen[bytes], log: Path
) -> None:
    """A bucket is made when it is first written to."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            anyio.run(S3Blobs(BUCKET, "ready", **server.options).put, "yes", b"yes")
            return
        except BlobsFailed:
            time.sleep(0.2)
    raise _NotUp(log.read_text()[-3000:])
