"""A server elsewhere that webhooks are sent to, in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver(HTTPServer):
    """Has its port from the beginning, and listens there when it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook, bind_and_activate=False)
        self.server_bind()
        self.seen: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.raw: list[tuple[dict[str, str], str]] = []  # headers and body, as they came
        self.status = 204

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.server_activate()
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        yield
        self.shutdown()
        thread.join()


class _Hook(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return  # whoever sends it was killed
        self.server.ids.append(self.headers["webhook-id"])
        self.server.raw.append((dict(self.headers), body.decode()))
        self.server.seen.append(json.loads(body)["data"])
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass
