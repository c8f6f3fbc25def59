"""Opens and closes the grants of sessions. The adapter of `ports/egress`.

One task group carries every session's connections, so that a runner neither waits for them nor falls
with them; each session's part of it ends on its own.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import httpx2
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from roost.domain import address
from roost.domain.upstream import Upstream, searches_web
from roost.egress.connections import UpstreamConnections
from roost.egress.dial import Dialer
from roost.egress.dialects import DIALECTS, MODEL_SOCKET, NO_MODEL
from roost.egress.git import GitProxy
from roost.egress.hosts import NetworkRules
from roost.egress.inside import (
    CERTIFICATE,
    CERTIFICATES,
    GIT_SOCKET,
    MCP_SOCKETS,
    PROXY_SOCKET,
    TRUST_STORE,
    files_of,
    name_of,
    open_grant,
)
from roost.egress.loopback import LocalServer, for_own_user, local_servers
from roost.egress.mcp import McpProxy
from roost.egress.model import ModelProxy, Work
from roost.egress.network import NetworkProxy
from roost.egress.options import EgressOptions, ModelUpstream
from roost.egress.outbound import RestrictedHttp
from roost.egress.reports import Reports
from roost.egress.routes import OWN, ModelRoute, ModelRoutes
from roost.egress.secrets import SHORTEST_KEY, SHORTEST_SECRET
from roost.egress.substitution import SessionSubstitutions, unreachable
from roost.egress.tls import merged, trust_store
from roost.egress.unix import UnixStream, accept, listening, prepare
from roost.egress.upstream import UpstreamClient
from roost.egress.wire import HeldBytes
from roost.errors import InvalidRequest, LeaseLost, Unavailable
from roost.ports.egress import Grant, OpenGrant, Origin

_log = logging.getLogger(__name__)

_SOCKETS = (MODEL_SOCKET, PROXY_SOCKET, GIT_SOCKET, *MCP_SOCKETS)
_NAMES = tuple(map(name_of, (*_SOCKETS, CERTIFICATE, CERTIFICATES, TRUST_STORE)))
_PAUSE = 0.1

Handler = Callable[[ByteStream], Awaitable[None]]


@asynccontextmanager
async def serving(options: EgressOptions) -> AsyncGenerator[HostEgress, None]:
    """The egress of this host, until the context ends.

    :raises StartupError: the directory cannot be used, or something in the options is malformed
    """
    await options.check()
    prepare(options.directory, _NAMES)
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
        """Nothing of it is left: whoever waits for that goes on."""
        self._over.set()

    async def end(self) -> None:
        """Cut its connections, and wait until nothing of it is left."""
        self.scope.cancel()
        if not self.began:
            return
        with anyio.CancelScope(shield=True):
            await self._over.wait()


class HostEgress:
    """`ports.egress.Egress`: serves the grants of this process; made by `serving`.

    `outbound` sends the server's own requests to addresses that clients gave.
    """

    def __init__(self, options: EgressOptions, tasks: TaskGroup) -> None:
        self._options = options
        self._tasks = tasks
        bounds = options.bounds
        self._dialer = Dialer(options.resolve, options.allow_networks, bounds.connect_seconds)
        self._held = HeldBytes(bounds.all_held_bytes)
        self._opened: dict[str, _Opened] = {}
        self.outbound = RestrictedHttp(self._dialer, bounds, options.ports)

    @asynccontextmanager
    async def open(self, grant: Grant) -> AsyncGenerator[OpenGrant, None]:
        # The host's ports are closed last: nobody else may have one while its address is in use.
        with local_servers(_servers(grant), on_host=grant.on_host) as local:
            async with self._open(grant, local) as opened:
                yield opened

    @asynccontextmanager
    async def _open(
        self, grant: Grant, local: Mapping[str, LocalServer]
    ) -> AsyncGenerator[OpenGrant, None]:
        bounds = self._options.bounds
        most = (2 + len(local)) * bounds.connections
        connections = UpstreamConnections(bounds, self._dialer, most)
        own = SessionSubstitutions(grant.session_id, grant.substitutions, bounds.callback_seconds)
        routes = self._routes(grant, connections)
        handlers, model = self._handlers(grant, routes, connections, own, local)
        files: dict[str, bytes] = {}
        if paths := files_of(grant.substitutions, handlers):
            files = await anyio.to_thread.run_sync(_files, own, paths)
        ports = [each.bound for each in local.values() if each.bound is not None]
        opened = await self._take_over(grant)
        try:
            began = await self._tasks.start(
                self._serve, grant, handlers, files, ports, connections, opened
            )
            if isinstance(began, Exception):
                raise began
            directory, listeners = began
            takes = {path: listener.take for path, listener in listeners.items()}
            packages = self._options.package_hosts
            dialect = DIALECTS[grant.api] if routes else NO_MODEL
            yield open_grant(
                directory,
                dialect.on_port() if grant.model_port else dialect,
                takes,
                _repositories(grant),
                local,
                grant.substitutions,
                unreachable(grant.substitutions, grant.networking, packages),
                upstream=None if routes is None else routes.usual.upstream,
                ask_model=None
                if model is None
                else partial(model.ask, listeners[MODEL_SOCKET].begin),
            )
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

    def _routes(self, grant: Grant, connections: UpstreamConnections) -> ModelRoutes | None:
        """Where the session's models are: all at its own origin if it brings one, else at the operator's. None: it
        is given no model.
        """
        if not grant.api:
            return None
        own = [each for each in grant.origins if each.protocol == grant.api]
        served = [ModelUpstream(_own_upstream(each), each) for each in own[:1]]
        served = served or [e for e in self._options.upstreams if e.origin.protocol == grant.api]
        if not served or grant.api not in DIALECTS:
            raise Unavailable(f"no model is configured under the name {grant.api!r}")
        # Stand-ins for keys are the operator's: what is in a vault is a secret.
        shortest = SHORTEST_SECRET if own else SHORTEST_KEY
        routes = [
            ModelRoute(each.upstream, UpstreamClient(each.origin, connections, shortest=shortest))
            for each in served
        ]
        return ModelRoutes(routes, grant.model)

    def _handlers(
        self,
        grant: Grant,
        routes: ModelRoutes | None,
        connections: UpstreamConnections,
        substitutions: SessionSubstitutions,
        local: Mapping[str, LocalServer],
    ) -> tuple[dict[str, Handler], ModelProxy | None]:
        """Who serves each socket, by its path inside; and who of them asks the model."""
        bounds = self._options.bounds
        reports = Reports(grant, bounds.callback_seconds)
        held = HeldBytes(bounds.held_bytes, of=self._held)
        handlers: dict[str, Handler] = {}
        model = None if routes is None else ModelProxy(grant, routes, reports, bounds, held)
        if model is not None:
            handlers[MODEL_SOCKET] = model.serve
        if grant.networking.kind != "none":
            network = NetworkProxy(
                grant.networking, self._dialer, reports, self._options, substitutions, held
            )
            handlers[PROXY_SOCKET] = network.serve
        if repositories := _repositories(grant):
            handlers[GIT_SOCKET] = GitProxy(repositories, connections, bounds).serve
        rules = NetworkRules(grant.networking, self._options.ports, self._options.package_hosts)
        for path, server in zip(MCP_SOCKETS, _servers(grant), strict=False):
            at, holds = local[server.url], None if grant.on_host else rules
            proxy = McpProxy(server, at, connections, holds, reports, bounds, held)
            handlers[path] = proxy.serve
        return handlers, model

    async def _serve(
        self,
        grant: Grant,
        handlers: Mapping[str, Handler],
        files: Mapping[str, bytes],
        ports: Sequence[socket.socket],
        connections: UpstreamConnections,
        opened: _Opened,
        *,
        task_status: TaskStatus[tuple[Path, Mapping[str, _Listener]] | Exception],
    ) -> None:
        """Serve a grant until its scope is cancelled. A start that fails is handed back as a value:
        raised, it would take every other session with it.
        """
        directory, most = self._options.directory, self._options.bounds.connections
        opened.began = True
        listeners: dict[str, _Listener] = {}
        try:
            with (
                opened.scope,
                listening(directory, list(map(name_of, handlers)), files) as (own, bound),
            ):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(connections.tidy)
                    for path, handler in handlers.items():
                        listeners[path] = _Listener(handler, grant.session_id, most, tasks)
                        tasks.start_soon(listeners[path].accept, bound[name_of(path)])
                    for path, port in zip(MCP_SOCKETS, ports, strict=False):
                        own_user = for_own_user(handlers[path])
                        listener = _Listener(own_user, grant.session_id, most, tasks)
                        tasks.start_soon(listener.accept, port)
                    task_status.started((own, listeners))
        except Unavailable as error:
            task_status.started(error)
        finally:
            for listener in listeners.values():
                listener.closed = True
            try:
                await connections.close()
            finally:
                opened.over()


class _Listener:
    """Carries the connections to one endpoint, as many at a time as a session may have; the rest wait."""

    def __init__(self, handler: Handler, session_id: str, most: int, tasks: TaskGroup) -> None:
        self.closed = False
        self._handler = handler
        self._session_id = session_id
        self._slots = anyio.Semaphore(most)
        self._tasks = tasks

    async def accept(self, bound: socket.socket) -> None:
        """Those that come to a socket, until cancelled."""
        while True:
            await anyio.wait_readable(bound)  # before a slot is taken: others may need it
            await self._slots.acquire()
            try:
                self._tasks.start_soon(self._carry, partial(self._serve, await accept(bound)))
            except OSError:
                # No descriptor is left, or the client is gone already: both pass.
                self._slots.release()
                await anyio.sleep(_PAUSE)

    async def take(self, connection: socket.socket) -> None:
        """One that has come to a port of a sandbox. When all is over, it is hung up on."""
        if not await self.begin(partial(self._serve, UnixStream(connection))):
            connection.close()

    async def begin(self, work: Work) -> bool:
        """Do it as one of the connections, when there is room for it. False: all is over."""
        await self._slots.acquire()
        if self.closed:
            self._slots.release()
        else:
            self._tasks.start_soon(self._carry, work)
        return not self.closed

    async def _serve(self, stream: ByteStream) -> None:
        async with stream:
            await self._handler(stream)

    async def _carry(self, work: Work) -> None:
        try:
            await _guarded(work, self._session_id)
        finally:
            self._slots.release()


def _files(substitutions: SessionSubstitutions, paths: Sequence[str]) -> dict[str, bytes]:
    """What a sandbox is shown so that its programs trust our certificates, by the names of the files. Blocks."""
    own = substitutions.authority.certificate
    everything = merged(own)
    shown = {CERTIFICATE: own, CERTIFICATES: everything, TRUST_STORE: trust_store(everything)}
    return {name_of(path): shown[path] for path in paths}


def _own_upstream(origin: Origin) -> Upstream:
    api = origin.protocol
    return Upstream(name=OWN, api=api, web_search=searches_web(api, origin.url))


def _repositories(grant: Grant) -> list[Origin]:
    return [each for each in grant.origins if each.protocol == "git"]


def _servers(grant: Grant) -> list[Origin]:
    """Its MCP servers, each address once; without those whose address is malformed."""
    found: dict[str, Origin] = {}
    for each in grant.origins:
        with suppress(InvalidRequest, httpx2.InvalidURL):
            if each.protocol == "mcp":
                address.checked(each.url, "url")
                httpx2.URL(each.url)
                found.setdefault(each.url, each)
    return [*found.values()][: len(MCP_SOCKETS)]


async def _guarded(work: Work, session_id: str) -> None:
    """Whatever one connection does, the others go on."""
    try:
        await work()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
        _log.debug("a connection was cut", extra={"session_id": session_id})
    except Exception:  # noqa: BLE001 - a mistake of ours, found by a client of one session
        _log.exception("a connection was dropped", extra={"session_id": session_id})
