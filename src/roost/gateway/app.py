"""The gateway as an ASGI application, and the sockets that are open: pinged, counted, closed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio
from anyio.abc import TaskStatus
from prometheus_client import Gauge
from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.framework.deps import Deps
from roost.api.framework.errors import refusal
from roost.core.read.fanout import Fanout
from roost.errors import RoostError, TooManySockets
from roost.gateway import server_messages
from roost.gateway.admission import admit
from roost.gateway.connection import EXTENSION, ClientConnection
from roost.gateway.server_messages import EntryEncoder
from roost.gateway.socket import FAILED, LOGGED_OUT, RESTART, Socket
from roost.gateway.task_updates import TaskUpdates
from roost.ids import mint
from roost.ports.sandbox import Stats

StatsOf = Callable[[str], Awaitable[Stats | None]]

_log = logging.getLogger(__name__)
_SLOTS: Final = 30
"""Sockets are pinged in turns, a slot of them at a time: one timer for all, and no bursts."""
_STATS_SECONDS: Final = 2.0


class Gateway:
    """Serves WebSockets: admits clients, pings them, and closes what has to end."""

    def __init__(
        self, deps: Deps, fanout: Fanout, task_updates: TaskUpdates, stats_of: StatsOf
    ) -> None:
        self._deps = deps
        self._fanout = fanout
        self._task_updates = task_updates
        self._stats_of = stats_of
        self._encoder = EntryEncoder()
        self._slots: list[set[Socket]] = [set() for _ in range(_SLOTS)]
        self._opened = 0
        self._of_key: Counter[str] = Counter()
        self._any_open = anyio.Event()
        deps.streams.others.append(self.close)
        deps.streams.openers_of_others.append(self._openers)
        gauge = Gauge("roost_sockets", "WebSockets open now.", registry=deps.registry)
        gauge.set_function(lambda: len(self))

    def __len__(self) -> int:
        return sum(map(len, self._slots))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, until it ends."""
        await receive()  # `websocket.connect`
        try:
            admission = await admit(self._deps, scope)
            self._check_count(admission.key.id)
        except RoostError as error:
            await refusal(error, mint("req"))(scope, receive, send)
            return
        connection: ClientConnection = scope["extensions"][EXTENSION]
        await send({"type": "websocket.accept"})
        socket = Socket(
            connection, admission, self._deps, self._fanout, self._task_updates, self._encoder
        )
        await self._serve(socket, receive)

    def _check_count(self, key_id: str) -> None:
        if self._of_key[key_id] >= self._deps.settings.max_sockets:
            raise TooManySockets(retry_after=5)

    async def _serve(self, socket: Socket, receive: Receive) -> None:
        self._opened += 1
        self._of_key[socket.admission.key.id] += 1
        slot = self._slots[self._opened % _SLOTS]
        slot.add(socket)
        self._any_open.set()
        try:
            await socket.serve(receive)
        except RoostError as error:
            socket.send(server_messages.error_message(error))
            socket.connection.hang_up(FAILED, "the server failed; reconnect")
        except Exception:  # noqa: BLE001 - whatever it is, the client is told, and others go on
            _log.exception("socket failed", extra={"session": socket.session_id, "action": "ws"})
            socket.connection.hang_up(FAILED, "the server failed; reconnect")
        finally:
            slot.discard(socket)
            self._of_key[socket.admission.key.id] -= 1
            self._of_key += Counter()  # without those that are at 0
            if not len(self):
                self._any_open = anyio.Event()  # those who look after them may sleep again

    def close(self, opener: str | None) -> None:
        """Close all of them, because the server stops, or those of one key or login."""
        for slot in self._slots:
            for socket in list(slot):
                if opener is None:
                    socket.connection.hang_up(RESTART, "the server is stopping; reconnect")
                elif opener in (socket.admission.key.id, socket.admission.login_id):
                    socket.connection.hang_up(LOGGED_OUT, "logged out, or the key was revoked")

    def _openers(self) -> Iterator[tuple[str, str | None]]:
        for slot in self._slots:
            for socket in slot:
                yield socket.admission.key.id, socket.admission.login_id

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Ping the sockets and send them memory figures, until cancelled; asleep while there are none."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._fanout.run)
            await tasks.start(self._task_updates.run)
            tasks.start_soon(self._send_memory)
            task_status.started()
            while True:
                await self._any_open.wait()
                for slot in self._slots:
                    await anyio.sleep(self._deps.settings.ping_seconds / _SLOTS)
                    self._ping(slot)

    def _ping(self, slot: set[Socket]) -> None:
        silent = anyio.current_time() - 2.5 * self._deps.settings.ping_seconds
        for socket in list(slot):
            if socket.connection.last_heard < silent:
                socket.connection.hang_up(FAILED, "no answer to pings")
            else:
                socket.connection.ping()

    async def _send_memory(self) -> None:
        while True:
            await self._any_open.wait()
            await anyio.sleep(_STATS_SECONDS)
            for session_id, channel in list(self._fanout.awake()):
                stats = await self._stats_of(session_id)
                if stats is not None:
                    frames = server_messages.memory_stats(stats)
                    for follower in list(channel.followers):
                        if isinstance(follower, Socket):
                            follower.send(frames)


class ProtocolRouter:
    """Passes HTTP on to the API, and WebSockets to the gateway."""

    def __init__(self, api: ASGIApp, gateway: ASGIApp) -> None:
        self._api = api
        self._gateway = gateway

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request, serve one connection, or accompany one lifespan."""
        answer = self._gateway if scope["type"] == "websocket" else self._api
        return answer(scope, receive, send)
