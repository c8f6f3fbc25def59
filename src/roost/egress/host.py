"""Opens and closes the ways out. The adapter of `ports/egress`.

One task group carries every session's connections, so that a runner neither waits for them nor falls
with them; each session's part of it ends on its own.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from roost.egress import sockets
from roost.egress.client import Client
from roost.egress.dial import Dialer
from roost.egress.git import GitRoad
from roost.egress.held import Share
from roost.egress.inside import GIT_SOCKET, MODEL_SOCKET, PROXY_SOCKET, open_grant
from roost.egress.model import ModelRoad
from roost.egress.network import NetworkRoad
from roost.egress.options import Options
from roost.egress.reports import Reports
from roost.egress.unix import UnixStream, accept
from roost.egress.upstream import Line
from roost.errors import LeaseLost, Unavailable
from roost.ports.egress import Grant, OpenGrant

_log = logging.getLogger(__name__)

_NAMES = (MODEL_SOCKET, PROXY_SOCKET, GIT_SOCKET)
_PAUSE = 0.1

Handler = Callable[[ByteStream], Awaitable[None]]


@asynccontextmanager
async def serving(options: Options) -> AsyncGenerator[HostEgress, None]:
    """The way out of this host, until the context ends.

    :raises StartupError: the directory cannot be used, or something in the options is malformed
    """
    options.check()
    sockets.prepare(options.directory, _NAMES)
    async with anyio.create_task_group() as tasks:
        try:
            yield HostEgress(options, tasks)
        finally:
            tasks.cancel_scope.cancel()


class _Opened:
    """A grant that is being served."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.began = False
        self.scope = anyio.CancelScope()
        self._over = anyio.Event()

    def over(self) -> None:
        """Nothing of it is left."""
        self._over.set()

    async def end(self) -> None:
        """Cut its connections, and wait until nothing of it is left."""
        self.scope.cancel()
        if not self.began:
            return
        with anyio.CancelScope(shield=True):
            await self._over.wait()


class HostEgress:
    """Serves grants; made by `serving`."""

    def __init__(self, options: Options, tasks: TaskGroup) -> None:
        self._options = options
        self._tasks = tasks
        bounds = options.bounds
        self._dialer = Dialer(options.resolve, options.allow_networks, bounds.connect_seconds)
        self._held = Share(bounds.all_held_bytes)
        self._opened: dict[str, _Opened] = {}

    @asynccontextmanager
    async def open(self, grant: Grant) -> AsyncGenerator[OpenGrant, None]:
        upstream = self._options.upstreams.get(grant.api)
        if upstream is None:
            raise Unavailable(f"no model is configured under the name {grant.api!r}")
        client = Client(self._options.bounds)
        handlers = self._handlers(grant, Line(upstream, client), client)
        opened = await self._take_over(grant)
        try:
            began = await self._tasks.start(self._serve, grant, handlers, client, opened)
            if isinstance(began, Exception):
                raise began
            place, roads = began
            takes = {name: road.take for name, road in roads.items()}
            yield open_grant(place, upstream.dialect, takes, grant.repositories)
        finally:
            await opened.end()
            if self._opened.get(grant.session_id) is opened:
                del self._opened[grant.session_id]

    async def _take_over(self, grant: Grant) -> _Opened:
        """Of a session's grants only the newest counts; the one before it ends first."""
        before = self._opened.get(grant.session_id)
        if before is not None and before.generation >= grant.generation:
            raise LeaseLost
        opened = self._opened[grant.session_id] = _Opened(grant.generation)
        if before is not None:
            await before.end()
        return opened

    def _handlers(self, grant: Grant, line: Line, client: Client) -> dict[str, Handler]:
        bounds = self._options.bounds
        reports = Reports(grant, bounds.callback_seconds)
        held = Share(bounds.held_bytes, of=self._held)
        model = ModelRoad(grant, line, reports, bounds, held)
        handlers: dict[str, Handler] = {MODEL_SOCKET: model.serve}
        if grant.networking.kind != "none":
            road = NetworkRoad(grant.networking, self._dialer, reports, self._options)
            handlers[PROXY_SOCKET] = road.serve
        if grant.repositories:
            handlers[GIT_SOCKET] = GitRoad(grant.repositories, client, bounds).serve
        return handlers

    async def _serve(
        self,
        grant: Grant,
        handlers: Mapping[str, Handler],
        client: Client,
        opened: _Opened,
        *,
        task_status: TaskStatus[tuple[Path, Mapping[str, _Road]] | Exception],
    ) -> None:
        """Serve a grant until its scope is cancelled. A start that fails is handed back as a value:
        raised, it would take every other session with it.
        """
        directory, most = self._options.directory, self._options.bounds.connections
        opened.began = True
        roads: dict[str, _Road] = {}
        try:
            with (
                opened.scope,
                sockets.listening(directory, list(handlers)) as (place, bound),
            ):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.tidy)
                    for name, handler in handlers.items():
                        roads[name] = _Road(handler, grant.session_id, most, tasks)
                        tasks.start_soon(roads[name].accept, bound[name])
                    task_status.started((place, roads))
        except Unavailable as error:
            task_status.started(error)
        finally:
            for road in roads.values():
                road.closed = True
            try:
                await client.close()
            finally:
                opened.over()


class _Road:
    """Carries connections, as many at a time as a session may have; the rest wait in line."""

    def __init__(self, handler: Handler, session_id: str, most: int, tasks: TaskGroup) -> None:
        self.closed = False
        self._handler = handler
        self._session_id = session_id
        self._slots = anyio.Semaphore(most)
        self._tasks = tasks

    async def accept(self, bound: socket.socket) -> None:
        """Those that come to a socket, until cancelled."""
        while True:
            await anyio.wait_readable(bound)  # before a place is taken: others may need it
            await self._slots.acquire()
            try:
                self._tasks.start_soon(self._carry, await accept(bound))
            except OSError:
                # No descriptor is left, or the client is gone already: both pass.
                self._slots.release()
                await anyio.sleep(_PAUSE)

    async def take(self, connection: socket.socket) -> None:
        """One that has come to a port of a sandbox. When all is over, it is hung up on."""
        await self._slots.acquire()
        if self.closed:
            self._slots.release()
            connection.close()
        else:
            self._tasks.start_soon(self._carry, UnixStream(connection))

    async def _carry(self, stream: ByteStream) -> None:
        try:
            await _guarded(self._handler, stream, self._session_id)
        finally:
            self._slots.release()


async def _guarded(handler: Handler, stream: ByteStream, session_id: str) -> None:
    """Whatever one connection does, the others go on."""
    try:
        async with stream:
            await handler(stream)
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
        _log.debug("a connection was cut", extra={"session_id": session_id})
    except Exception:  # noqa: BLE001 - a mistake of ours, found by a client of one session
        _log.exception("a connection was dropped", extra={"session_id": session_id})
