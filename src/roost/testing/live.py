"""A real Roost server in a process of its own, for tests that talk to it and kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType

import httpx2
import msgspec

_MEASURES = "COVERAGE_PROCESS_CONFIG"
_MEASURED = 15
"""So many servers of a process are measured, if its tests are. That adds half to what a start costs, and
those after them do nothing new.
"""
_made = count(1)


class LiveServer:
    """`roost serve` on a free port. Survives `kill` and `start` with the same data directory and port.

    The environment holds only what is given, so that no key or setting of the machine leaks in. Unless
    asked to, it starts no agents that no test has asked for (`ROOST_PRESTART`), and does not mind what else the
    machine has to do (`ROOST_MAX_LOAD`). A start is made through the
    programs in `prefix`, which have to become the server.
    """

    prefix: Sequence[str] = ()

    def __init__(self, data: Path, **environ: str) -> None:
        self.data = data
        self.url = ""
        self._port = _held_port(self)
        wanted = ("PATH", _MEASURES) if next(_made) <= _MEASURED else ("PATH",)
        passed_on = {name: os.environ[name] for name in wanted if name in os.environ}
        self._environ = {
            "HOME": str(data),
            "ROOST_PRESTART": "0",
            "ROOST_MAX_LOAD": "0",
            **passed_on,
            **self.environ_of(data),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def environ_of(data: Path) -> Mapping[str, str]:
        """What every server is told besides: tests that are run on several stores name the database."""
        return {}

    def __enter__(self) -> LiveServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.has_ended():
            self.stop()

    @property
    def key(self) -> str:
        """The administrator's API key."""
        return (self.data / "keys" / "admin.key").read_text().strip()

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is not there, or not any more."""
        return self._process is None or self._process.poll() is not None

    @property
    def output(self) -> str:
        """What the server has written to its standard error so far, over all starts."""
        return (self.data / "server.log").read_text()

    def start(self, *, seconds: float = 300) -> None:
        """Start the process and wait until it is ready."""
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "server.json").unlink(missing_ok=True)
        command = [*self.prefix, sys.executable, "-m", "roost", "serve", "--port", str(self._port)]
        with (self.data / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--data", str(self.data)],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            self._wait_until_ready(time.monotonic() + seconds)
        except BaseException:
            self.kill()  # nobody else would: a context that was not entered is not left
            raise

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, *, seconds: float = 300) -> int:
        """SIGTERM, and the exit code of a graceful stop."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def _wait_until_ready(self, deadline: float) -> None:
        assert self._process is not None, "not started"
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"the server exited with {code}:\n{self.output}")
            if self._is_ready():
                return
            time.sleep(0.02)
        raise TimeoutError(f"the server is not ready:\n{self.output}")

    def _is_ready(self) -> bool:
        try:
            self.url = msgspec.json.decode((self.data / "server.json").read_bytes())["url"]
            # Reading all certificates takes longer than the question; plain HTTP needs none.
            return httpx2.get(f"{self.url}/readyz", verify=False).status_code == 200
        except (OSError, msgspec.DecodeError, httpx2.HTTPError):
            return False


def _held_port(owner: object) -> int:
    """A port for as long as `owner` is there: clients that reconnect find the server again.

    It is bound and not listened at, so that the server can have it and nobody is given it by chance
    while that is down: on a busy machine hundreds of others look for one meanwhile.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        weakref.finalize(owner, os.close, bound.detach())
    return port
