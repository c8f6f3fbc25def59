"""A stand-in for the server that does what a test tells it: answers, breaks off, refuses.

It keeps the few rules the command line relies on: a log with positions, streams that begin after
`Last-Event-ID`, previews that are never repeated, one event per `client_id`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]
Turn = Callable[["Fake", Json], None]


def answer_hello(fake: Fake, message: Json) -> None:
    """A whole turn: two previews, then the message they belong to."""
    fake.begin(message)
    fake.preview("sevt_a", "Hel")
    fake.preview("sevt_a", "lo")
    fake.append("agent.message", id="sevt_a", content=[{"type": "text", "text": "Hello there."}])
    fake.rest()


def withdraw(fake: Fake, message: Json) -> None:
    """Somebody else interrupts before the agent has got it."""
    while fake.read_at_post == len(fake.streams):
        time.sleep(0.005)
    stop = fake.append("user.interrupt")
    mine = {**_fields(message), "kind": message["type"], "id": message["id"]}
    fake.append(**mine, withdrawn_at="now")
    fake.append("roost.withdrawn", event_ids=[message["id"]], interrupt_id=stop["id"])
    fake.rest()


class Fake:
    """One server with at most one session, `sesn_1`."""

    def __init__(self, turn: Turn = answer_hello) -> None:
        self.turn = turn
        self.frames: list[tuple[int | None, Json]] = []
        self.made: dict[str, list[Json]] = {"agents": [], "environments": [], "sessions": []}
        self.keys: list[Json] = []
        self.posted: list[Json] = []
        self.streams: list[str] = []
        self.cut_after: list[int] = []  # for each coming stream: after how many frames it breaks
        self.lost_answers = 0  # so many posts are kept, but their answer does not arrive
        self.trouble = (503, "unavailable", "The server is stopping.")  # what is said instead
        self.faster = False  # somebody else makes what a client is about to make
        self.break_off = False  # the next stream carries an error frame, and ends
        self.closed = False
        self._known: dict[str, Json] = {}
        self._seq = 0
        self.read_at_post = 0

    # What a turn says.

    def append(self, kind: str, **fields: Any) -> Json:
        self._seq += 1
        event: Json = {"type": kind, "id": f"sevt_{self._seq}", "processed_at": _at(self._seq)}
        self.frames.append((self._seq, event | fields))
        return event | fields

    def preview(self, event_id: str, text: str) -> None:
        if not any(e.get("event", {}).get("id") == event_id for _, e in self.frames):
            start = {"type": "event_start", "event": {"type": "agent.message", "id": event_id}}
            self.frames.append((None, start))
        delta = {"type": "content_delta", "index": 0, "content": {"type": "text", "text": text}}
        event = {"type": "event_delta", "event_id": event_id, "delta": delta}
        self.frames.append((None, event))

    def begin(self, message: Json) -> None:
        while self.read_at_post == len(self.streams):
            time.sleep(0.005)  # until somebody watches, so that previews are seen
        self.append("session.status_running")
        self.append(**_fields(message), kind=message["type"], id=message["id"])

    def rest(self, reason: str = "end_turn", **fields: Any) -> None:
        self.append("session.status_idle", stop_reason={"type": reason, **fields})

    # What clients call.

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/readyz", lambda _: JSONResponse({})),
                Route("/v1/sessions/sesn_1/events/stream", self._stream),
                Route("/v1/sessions/sesn_1/events", self._send, methods=["POST"]),
                Route("/v1/sessions/sesn_1/events", self._newest),
                Route("/v1/sessions/sesn_1", self._session, methods=["GET", "DELETE"]),
                Route("/v1/agents/{id}", self._change_agent, methods=["POST"]),
                Route("/v1/{kind}", self._make, methods=["POST"]),
                Route("/v1/{kind}", self._list),
                *self._keys("/roost/v1/keys"),
                *self._keys("/roost/v1/environments/environments_1/keys"),
                Route("/{rest:path}", _missing, methods=["GET", "POST", "DELETE"]),
            ]
        )

    def _keys(self, path: str) -> list[Route]:
        return [
            Route(path, self._make_key, methods=["POST"]),
            Route(path, lambda _: JSONResponse({"data": self.keys})),
            Route(f"{path}/{{id}}", lambda _: JSONResponse({}), methods=["DELETE"]),
        ]

    async def _make(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        things = self.made[kind]
        things.append(await request.json())
        things[-1]["id"] = f"{kind}_{len(things)}" if kind != "sessions" else "sesn_1"
        if self.faster:
            return _error(409, "conflict", "That name is taken.", None)
        return JSONResponse(things[-1])

    async def _change_agent(self, request: Request) -> Response:
        [agent] = [each for each in self.made["agents"] if each["id"] == request.path_params["id"]]
        agent |= await request.json()
        return JSONResponse(agent)

    async def _list(self, request: Request) -> Response:
        """Pages of one, so that clients must turn them."""
        things = [_shown(thing) for thing in self.made[request.path_params["kind"]]]
        page = int(request.query_params.get("page", 0))
        more = str(page + 1) if page + 1 < len(things) else None
        return JSONResponse({"data": things[page : page + 1], "next_page": more})

    async def _session(self, request: Request) -> Response:
        rests = [e for _, e in self.frames if e["type"].startswith("session.status_")]
        waits = rests[-1].get("stop_reason", {}).get("event_ids", []) if rests else []
        session = {"id": "sesn_1", "title": "a \x1b[31mtitle", "waiting_for": waits}
        return JSONResponse(_shown(session))

    async def _make_key(self, request: Request) -> Response:
        self.keys.append(_shown(await request.json()) | {"id": "key_1"})
        return JSONResponse(self.keys[-1] | {"secret": "sk-secret"})

    async def _send(self, request: Request) -> Response:
        event = (await request.json())["events"][0]
        kept = self._known.get(event["client_id"])
        if kept is None:
            self.posted.append(event)
            kept = self.append(event["type"], processed_at=None, **_fields(event))
            self._known[event["client_id"]] = kept
            self.read_at_post = len(self.streams)
            threading.Thread(target=self.turn, args=(self, kept)).start()
        if self.lost_answers:
            self.lost_answers -= 1
            return _error(*self.trouble, None)
        return JSONResponse({"data": [kept]})

    async def _newest(self, request: Request) -> Response:
        by_id = {e["id"]: {**e, "seq": seq} for seq, e in self.frames if seq is not None}
        stored = sorted(by_id.values(), key=lambda event: -event["seq"])
        return JSONResponse({"data": stored[: int(request.query_params["limit"])]})

    async def _stream(self, request: Request) -> Response:
        after, opened = request.headers["last-event-id"], len(self.frames)
        self.streams.append(after)
        cut = self.cut_after.pop(0) if self.cut_after else None
        return StreamingResponse(
            self._frames(int(after), opened, cut), media_type="text/event-stream"
        )

    def _frames(self, after: int, opened: int, cut: int | None) -> Iterator[str]:
        place, sent = 0, 0
        if self.break_off:
            self.break_off = False
            yield 'event: error\ndata: {"type": "error"}\n\n'
            return
        while not self.closed:
            while place < len(self.frames):
                seq, event = self.frames[place]
                fresh = place >= opened or seq is not None
                place += 1
                if not fresh or (seq is not None and seq <= after):
                    continue
                if cut is not None and sent == cut:
                    return
                sent += 1
                yield (
                    f"id: {seq}\n" if seq else ""
                ) + f"event: message\ndata: {json.dumps(event)}\n\n"
                if event["type"] == "session.deleted":
                    return
            yield ": still here\n\n"
            time.sleep(0.01)


class FakeServer:
    """A `Fake` on a real port, in a thread: streams and broken connections are real."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake
        config = uvicorn.Config(fake.app(), port=0, lifespan="off", log_config=None)
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *exc: object) -> None:
        self._fake.closed = True
        self._server.should_exit = True
        self._thread.join()


def _fields(event: Json) -> Json:
    return {k: v for k, v in event.items() if k not in ("id", "type", "processed_at", "client_id")}


def _shown(thing: Json) -> Json:
    always = {
        "status": "idle",
        "title": None,
        "environment_id": "env_1",
        "usage": {"input_tokens": 3, "output_tokens": 4, "active_seconds": 1.25},
        "tenant": "default",
        "role": "user",
        "trust_ceiling": "sandboxed",
        "sees": "own",
        "created_at": _at(1),
        "updated_at": _at(2),
        "archived_at": None,
        "revoked_at": None,
    }
    return always | thing | {"agent": {"name": "roost-chat", "version": 1}}


def _at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000000Z"


def _missing(request: Request) -> Response:
    return _error(404, "not_found", f"There is no {request.url.path} here.", "Look again.")


def _error(status: int, code: str, message: str, hint: str | None) -> Response:
    details = {"error_code": code, "hint": hint}
    error = {"type": "not_found_error", "message": message, "details": details}
    return JSONResponse({"type": "error", "error": error}, status_code=status)
