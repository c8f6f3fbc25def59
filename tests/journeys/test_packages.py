"""An environment's packages, from an index of the test's own: there when the agent starts, whatever is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.contracts.test_bubblewrap import wheel
from tests.hostile.probed_sandbox import need_bubblewrap
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.testing.live import LiveServer

HOST = "127.0.0.2"  # programs inside take 127.0.0.1 for their own


class Index(ThreadingHTTPServer):
    """A package index with one package; the first download waits until it is `released`."""

    def __init__(self, folder: Path) -> None:
        super().__init__((HOST, 0), _Answer)
        self.file = folder / wheel(folder)
        self.downloads = 0
        self.released = threading.Event()

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)  # without asking for the host's name
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def settings(self) -> dict[str, str]:
        port = self.server_port
        address = f"PIP_INDEX_URL=http://{HOST}:{port}/simple"
        return {
            "ROOST_EGRESS_NETWORKS": "127.0.0.0/8",
            "ROOST_EGRESS_PORTS": str(port),
            "ROOST_PACKAGE_ENVIRON": f"{address},PIP_TRUSTED_HOST={HOST},PIP_RETRIES=0,PIP_DEFAULT_TIMEOUT=900",
        }


class _Answer(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.server.downloads += 1
            self.server.released.wait(600)
            self._send("application/zip", self.server.file.read_bytes())
        elif self.path == "/simple/hello-roost/":
            name = self.server.file.name
            self._send("text/html", f'<a href="/files/{name}">{name}</a>'.encode())
        else:
            self.send_error(404)

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def index_in(folder: Path) -> Iterator[Index]:
    with Index(folder) as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        try:
            yield index
        finally:
            index.released.set()
            index.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_bubblewrap()


def with_packages(chat: Chat, *packages: str, **metadata: str) -> None:
    """Sandboxes from now on have these."""
    config = {"type": "cloud", "packages": {"pip": list(packages)}}
    chat.client.beta.environments.update(
        chat.session.environment_id,
        config=config,  # type: ignore[arg-type]
        metadata={f"roost.{name}": value for name, value in metadata.items()},
    )


def test_packages_are_there_when_the_agent_starts_though_the_server_is_killed(tmp_path: Path):
    hello = script(bash("hello-roost"), {"text": "Done."})
    with index_in(tmp_path) as index, LiveServer(tmp_path / "data", **index.settings) as server:
        chat = Chat(server, networking={"type": "unrestricted"})
        with_packages(chat, "hello-roost==1.0")
        chat.send(hello)
        chat.wait_for("roost.packages_installing")
        assert chat.status == "running"
        server.kill()
        index.released.set()
        server.start()
        chat.move_to(server)
        chat.wait_until_idle(300)
        events = chat.events()
        assert (printed(events), said(events)) == (["hello"], ["Done."])
        types = [event.type for event in events]
        assert types.index("roost.packages_installed") < types.index("agent.tool_use")
        downloads = index.downloads
        again = chat.another()
        assert printed(again.turn(hello)) == ["hello"]
        assert "roost.packages_installing" not in [event.type for event in again.events()]
        assert index.downloads == downloads, "it is installed once, for all sessions"
        _check_failure(chat)


def _check_failure(chat: Chat) -> None:
    """A package that does not exist is named; the session waits, or goes on if its environment says so."""
    with_packages(chat, "hello-roost", "no-such-package")
    failing = chat.another()
    *_, idle = failing.turn(script({"text": "Never said."}))
    [error] = [event.error for event in failing.events() if event.type == "session.error"]
    assert error.code == "packages_failed"
    assert error.message.startswith("pip could not install no-such-package:\n")
    assert "No matching distribution found" in error.message
    assert idle.stop_reason.type == "retries_exhausted"
    with_packages(chat, "hello-roost", "no-such-package", packages_failed="continue")
    assert said(chat.another().turn(script({"text": "Without."}))) == ["Without."]
