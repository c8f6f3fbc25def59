"""A client's end of a WebSocket, bare: frames in, frames out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from roost.testing.live import LiveServer

HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
Json = dict[str, Any]


class Api:
    """The HTTP side, with one key."""

    def __init__(self, server: LiveServer, key: str | None = None) -> None:
        self.server = server
        self.http = httpx2.Client(
            base_url=server.url,
            headers={**HEADERS, "x-api-key": key or server.key},
            timeout=300,
            # One that is kept may be closed by the server just when a request is sent.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post(self, path: str, body: Any = None, **more: Any) -> Json:
        response = self.http.post(path, json=body, **more)
        assert response.status_code == 200, response.text
        found: Json = response.json()
        return found

    def get(self, path: str, **params: Any) -> Json:
        response = self.http.get(path, params=params)
        assert response.status_code == 200, response.text
        found: Json = response.json()
        return found

    def parts(self, **agent: Any) -> Json:
        """A new agent and a new environment, as a session names them."""
        made = self.post("/v1/agents", {"name": "helper", "model": "claude-x", **agent})
        place = self.post("/v1/environments", {"name": f"home {time.time_ns()}"})
        return {"agent": made["id"], "environment_id": place["id"]}

    def session(self, tools: Any = (), **fields: Any) -> str:
        body = {**self.parts(tools=list(tools)), **fields}
        return str(self.post("/v1/sessions", body)["id"])

    def token(self, session_id: str | None = None) -> str:
        asked = {} if session_id is None else {"sessionId": session_id}
        return str(self.get("/auth/ws-token", **asked)["token"])

    def events(self, session_id: str) -> list[Json]:
        found: list[Json] = []
        page: Json = {"next_page": None}
        while page["next_page"] or not found:
            more = {"page": page["next_page"]} if page["next_page"] else {}
            page = self.get(f"/v1/sessions/{session_id}/events", **more)
            found += page["data"]
            if not page["data"]:
                break
        return found

    def open(self, session_id: str | None = None, **more: Any) -> Talk:
        query = {"token": self.token(session_id), **more}
        if session_id is not None:
            query["sessionId"] = session_id
        return Talk(address(self.server, **query))

    def talk(self, session_id: str, **start: Any) -> Talk:
        """A socket that has started."""
        talk = self.open(session_id)
        talk.say("start", **start)
        talk.until("agent_status")
        return talk


def address(server: LiveServer, **query: Any) -> str:
    return f"{server.url.replace('http', 'ws', 1)}/ws/v2?{urlencode(query)}"


class Talk:
    """Every message that came, in order, and the words to send some."""

    def __init__(self, address: str, **more: Any) -> None:
        self._open = ExitStack()
        # It does not ask whether the server is there: on a busy machine an answer may take long.
        usual = {"max_size": None, "compression": None, "ping_interval": None}
        connecting = connect(address, **{**usual, **more})
        self.connection = self._open.enter_context(connecting)
        self.seen: list[Json] = []

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def say(self, type: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": type, **fields}))

    def next(self, seconds: float = 60) -> Json:
        message: Json = json.loads(self.connection.recv(timeout=seconds))
        self.seen.append(message)
        return message

    def until(self, wanted: str | Callable[[Json], bool], seconds: float = 60) -> Json:
        """The next message of a type, or that has something; those before it are in `seen`."""
        return self.seen[self.find(wanted, len(self.seen), seconds)]

    def find(
        self, wanted: str | Callable[[Json], bool], begin: int = 0, seconds: float = 60
    ) -> int:
        """Where the first such message from `begin` on is in `seen`, where it may be already."""
        deadline = time.monotonic() + seconds
        for place in count(begin):
            if place == len(self.seen):
                self.next(max(0.1, deadline - time.monotonic()))
            message = self.seen[place]
            if message["type"] == wanted if isinstance(wanted, str) else wanted(message):
                return place
        raise AssertionError("unreachable")

    def event(self, type: str) -> Json:
        """The next event of this type."""
        found = self.until(lambda m: m["type"] == "sdk_message" and m["message"]["type"] == type)
        return dict(found["message"])

    def types(self) -> list[str]:
        return [message["type"] for message in self.seen]

    def close_code(self) -> tuple[int | None, str | None]:
        """How the server ended it, after everything that was still to come."""
        with pytest.raises(ConnectionClosed):
            while True:
                self.next()
        self.close()
        return self.connection.close_code, self.connection.close_reason
