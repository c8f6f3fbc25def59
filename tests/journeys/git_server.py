"""A git server over HTTP that wants a token: git's own back end behind a few lines of ours."""

from __future__ import annotations

import os
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

_AS_NOBODY = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "PATH": os.environ["PATH"],
}


def git(*words: str, cwd: Path) -> str:
    made = subprocess.run(
        ["git", *words], cwd=cwd, env=_AS_NOBODY, check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def repository(root: Path, name: str, files: dict[str, str]) -> str:
    """A bare repository with one commit on `main` and one more on `other`; gives the first one's id."""
    work = root / f"{name}.work"
    work.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=work)
    for path, text in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    (work / "out").symlink_to("/etc/passwd")
    git("add", "-A", cwd=work)
    git("commit", "-q", "-m", "first", cwd=work)
    first = git("rev-parse", "HEAD", cwd=work)
    git("checkout", "-q", "-b", "other", cwd=work)
    (work / "other").write_text("other")
    git("add", "-A", cwd=work)
    git("commit", "-q", "-m", "second", cwd=work)
    git("checkout", "-q", "main", cwd=work)
    git("clone", "-q", "--bare", str(work), str(root / f"{name}.git"), cwd=root)
    git("config", "http.receivepack", "true", cwd=root / f"{name}.git")
    return first


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    wanted: str

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self._body()
        if self.path.startswith("/forbidden"):
            self._answer(403, {}, b"no")
        elif self.headers.get("authorization") != self.wanted:
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who?")
        else:
            self._ask_git(body)

    def _ask_git(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        environ = {
            **_AS_NOBODY,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "a",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "CONTENT_LENGTH": str(len(body)),
        }
        made = subprocess.run(
            ["git", "http-backend"], input=body, env=environ, capture_output=True, check=False
        )
        head, _, content = made.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        status = int(fields.pop("Status", "200").split()[0])
        self._answer(status, fields, content)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", "0")))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, fields: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def git_server(root: Path, token: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves the repositories below `root` to who has the token; gives the address."""
    wanted = "Basic " + b64encode(f"x-access-token:{token}".encode()).decode()
    handler = type("Handler", (_Handler,), {"root": root, "wanted": wanted})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
