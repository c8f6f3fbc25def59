"""The proxy to the network: an HTTP proxy with rules, for one session.

A connection carries one request: `CONNECT host:443`, and then whatever both sides like, or one
request for an `http://` address. Rules are asked in the order of what they cost: port, host, then
the address, which takes a lookup that only permitted names are worth; last, inside a tunnel, the name
that a TLS client asks for (`server_name`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio
import h11
from anyio.abc import ByteStream

from roost.egress.dial import Dialer
from roost.egress.hosts import HostList, ProxyTarget, target_of
from roost.egress.options import EgressOptions
from roost.egress.reports import Refusal, Reports
from roost.egress.server_name import ACCESS_DENIED, NameCheck, Pieces
from roost.egress.wire import HttpStream, Peer, end_to_end
from roost.ports.egress import Networking, Reason

_CHUNK = 65536
_NOTICED = 1.0
"""Seconds within which traffic need not push the idle deadline again: it costs more than a read."""


class Bandwidth:
    """Bandwidth that a session's connections share, with a second's worth to spare."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._paid_until = 0.0

    async def spend(self, size: int) -> None:
        """Account for bytes about to be passed on; waits while that is too many too soon."""
        now = anyio.current_time()
        self._paid_until = max(self._paid_until, now - 1) + size / self._per_second
        if self._paid_until > now:
            await anyio.sleep(self._paid_until - now)


async def pieces_of(stream: ByteStream, early: bytes = b"") -> Pieces:
    """What one side says, until it has no more to say. `early` is what was heard of it before."""
    if early:
        yield early
    while True:
        try:
            data = await stream.receive(_CHUNK)
        except anyio.EndOfStream:
            return
        yield data


class Tunnel:
    """Two streams tied together, for as long as something passes."""

    def __init__(
        self, near: ByteStream, far: ByteStream, pace: Bandwidth, idle_seconds: float
    ) -> None:
        self._near = near
        self._far = far
        self._pace = pace
        self._idle_seconds = idle_seconds
        self._scope = anyio.CancelScope()

    async def run(self, outgoing: Pieces, incoming: Pieces) -> None:
        """Carry on until both sides have ended, one is broken, or nothing has passed for long.

        :raises Refusal: one of the two is not to be carried on with
        """
        try:
            with self._scope:
                self._scope.deadline = anyio.current_time() + self._idle_seconds
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pipe, outgoing, self._far)
                    tasks.start_soon(self._pipe, incoming, self._near)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _pipe(self, pieces: Pieces, sink: ByteStream) -> None:
        try:
            async with aclosing(pieces):
                async for data in pieces:
                    await self._pace.spend(len(data))
                    self._noticed()
                    await sink.send(data)
            # One side has no more to say; the other may: pass on the end, and keep listening to it.
            await self._end(sink)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._scope.cancel()

    async def _end(self, sink: ByteStream) -> None:
        try:
            await sink.send_eof()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._scope.cancel()

    def _noticed(self) -> None:
        deadline = anyio.current_time() + self._idle_seconds
        if deadline - self._scope.deadline > min(_NOTICED, self._idle_seconds / 10):
            self._scope.deadline = deadline


class NetworkProxy:
    """Serves the connections that arrive at one session's proxy socket."""

    def __init__(
        self, networking: Networking, dialer: Dialer, reports: Reports, options: EgressOptions
    ) -> None:
        packages = options.package_hosts if networking.package_managers else ()
        self._hosts = HostList([*networking.allowed_hosts, *packages])
        self._any_host = networking.kind == "unrestricted"
        self._ports = options.ports
        self._dialer = dialer
        self._reports = reports
        self._bounds = options.bounds
        self._pace = Bandwidth(options.bounds.bytes_per_second)

    async def serve(self, stream: ByteStream) -> None:
        """Carry the one request of a connection."""
        peer = Peer(stream, self._bounds)
        try:
            request = await peer.request()
            if request is not None:
                await self._carry(peer, request, stream)
        except Refusal as refusal:
            await self._reports.refused(refusal)
            if peer.h11.our_state is h11.SWITCHED_PROTOCOL:
                await peer.last_words(ACCESS_DENIED)
                return
            text = f"roost: {refusal.message}\n".encode()
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await peer.respond(refusal.status, [kind], text, reason=refusal.message)

    async def _carry(self, peer: Peer, request: h11.Request, stream: ByteStream) -> None:
        target = target_of(request.method, request.target)
        self._check(target)
        connect = request.method == b"CONNECT"
        if connect:
            _check_bodiless(request)
        async with await self._dialer.dial(target) as far:
            if connect:
                await self._tunnel(peer, target, stream, far)
            else:
                await self._relay(peer, request, target, far)

    def _check(self, target: ProxyTarget) -> None:
        if target.port not in self._ports:
            raise _denied(target, "port_not_allowed", f"port {target.port} is not allowed")
        if not self._any_host and not self._hosts.has(target):
            raise _denied(target, "host_not_allowed", f"{target.host} is not an allowed host")

    async def _tunnel(
        self, peer: Peer, target: ProxyTarget, near: ByteStream, far: ByteStream
    ) -> None:
        await peer.receive()  # the end of the request: what follows is the tunnel's
        await peer.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        outgoing, incoming = pieces_of(near, peer.h11.trailing_data[0]), pieces_of(far)
        if not self._any_host:
            check = NameCheck(target, self._hosts, self._bounds)
            outgoing, incoming = check.outgoing(outgoing), check.incoming(incoming)
        await Tunnel(near, far, self._pace, self._bounds.idle_seconds).run(outgoing, incoming)

    async def _relay(
        self, peer: Peer, request: h11.Request, target: ProxyTarget, far: ByteStream
    ) -> None:
        """One plain request. It goes through h11 on both sides, so that nothing in it can pass for a
        second one.
        """
        server = HttpStream(far, h11.CLIENT, self._bounds)
        own = [(b"host", target.authority.encode()), (b"connection", b"close")]
        headers = own + end_to_end(request.headers, b"host", b"expect")
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            headers.append((b"transfer-encoding", b"chunked"))
        head = h11.Request(method=request.method, target=target.path.encode(), headers=headers)
        try:
            await server.send(head)
            await _both(self._upload, self._download, peer, server)
        except (h11.ProtocolError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream):
            raise Refusal(502, f"{target.host} did not answer with HTTP") from None

    async def _upload(self, peer: Peer, server: HttpStream) -> None:
        try:
            async with aclosing(peer.body()) as parts:
                async for data in parts:
                    await self._pace.spend(len(data))
                    await server.send(h11.Data(data=data))
            await server.send(h11.EndOfMessage())
        except anyio.BrokenResourceError:
            return  # a server may stop reading and still answer

    async def _download(self, peer: Peer, server: HttpStream) -> None:
        while True:
            with anyio.fail_after(self._bounds.idle_seconds):
                event = await server.receive()
            if isinstance(event, h11.Response):
                headers = [*end_to_end(event.headers), (b"connection", b"close")]
                await peer.send(h11.Response(status_code=event.status_code, headers=headers))
            elif isinstance(event, h11.Data):
                await self._pace.spend(len(event.data))
                await peer.send(h11.Data(data=event.data))
            elif not isinstance(event, h11.InformationalResponse):
                await peer.send(h11.EndOfMessage())
                return


async def _both(
    upload: Callable[[Peer, HttpStream], Coroutine[Any, Any, None]],
    download: Callable[[Peer, HttpStream], Coroutine[Any, Any, None]],
    peer: Peer,
    server: HttpStream,
) -> None:
    """Both ways at once, until the answer is complete: a server may answer before it has read all."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upload, peer, server)
            await download(peer, server)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _check_bodiless(request: h11.Request) -> None:
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers):
        raise Refusal(400, "CONNECT has no body")


def _denied(target: ProxyTarget, reason: Reason, message: str) -> Refusal:
    return Refusal(403, message, reason=reason, host=target.host, port=target.port)
