"""The proxy to the network: an HTTP proxy with rules, for one session.

A connection carries one request: `CONNECT host:443`, and then whatever both sides like, or one
request for an `http://` address. Rules are asked in the order of what they cost: port, host, then
the address, which takes a lookup that only permitted names are worth; last, inside a tunnel, the name
that a TLS client asks for (`server_name`). A tunnel to a host for which the session has a secret ends here
(`intercept`); every other one is passed on as it is.
"""

from __future__ import annotations

import ssl
from contextlib import aclosing
from ipaddress import ip_address

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from roost.egress.dial import Dialer
from roost.egress.hosts import NetworkRules, ProxyTarget, target_of
from roost.egress.inside import CERTIFICATE
from roost.egress.intercept import (
    Interception,
    Opening,
    Relay,
    Relaying,
    opening,
    searched,
    speaks_http,
)
from roost.egress.options import EgressOptions
from roost.egress.reports import Refusal, Reports
from roost.egress.server_name import ACCESS_DENIED, Hello, NameCheck, Pieces
from roost.egress.substitution import NOBODY, HostSubstitutions, SessionSubstitutions
from roost.egress.wire import HeldBytes, HttpStream, Peer
from roost.ports.egress import Networking, Reason

_CHUNK = 65536
_MOST_TOLD = 100
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
        self,
        networking: Networking,
        dialer: Dialer,
        reports: Reports,
        options: EgressOptions,
        substitutions: SessionSubstitutions,
        held: HeldBytes,
    ) -> None:
        self._rules = NetworkRules(networking, options.ports, options.package_hosts)
        self._dialer = dialer
        self._reports = reports
        self._bounds = options.bounds
        self._networks = options.allow_networks
        self._pace = Bandwidth(options.bounds.bytes_per_second)
        self._substitutions = substitutions
        self._relaying = Relaying(self._bounds, self._pace.spend, held)
        self._told: set[tuple[str, str]] = set()

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
        self._rules.check(target)
        connect = request.method == b"CONNECT"
        if connect:
            _check_bodiless(request)
        async with await self._dialer.dial(target) as far:
            if connect:
                await self._tunnel(peer, target, stream, far)
            else:
                await self._relay(peer, request, target, far)

    async def _tunnel(
        self, peer: Peer, target: ProxyTarget, near: ByteStream, far: ByteStream
    ) -> None:
        await peer.receive()  # the end of the request: what follows is the tunnel's
        await peer.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        begun = Opening(peer.h11.trailing_data[0])
        if given := self._substitutions.towards(target):
            begun = await opening(near, far, begun.near, self._bounds)
            if begun.hello is not None and await self._may_intercept(target, begun.hello):
                await self._intercept(target, given, near, far, begun.near)
                return
        outgoing, incoming = pieces_of(near, begun.near), pieces_of(far, begun.far)
        if not self._rules.any_host:
            check = NameCheck(target, self._rules.hosts, self._bounds)
            outgoing, incoming = check.outgoing(outgoing), check.incoming(incoming)
        await Tunnel(near, far, self._pace, self._bounds.idle_seconds).run(outgoing, incoming)

    async def _may_intercept(self, target: ProxyTarget, hello: Hello) -> bool:
        """Whether a client speaks what we do. :raises Refusal: it asks for another host than it connected to"""
        name = None if hello.name is None else hello.name.decode("ascii", "replace").lower()
        if name is not None and name.removesuffix(".") != target.host:
            raise Refusal(
                403,
                f"the name that is asked for by TLS is not {target.host}",
                reason="server_name_not_allowed",
                host=target.host,
                port=target.port,
                hint=f"It connected to {target.host} and asked there, by TLS, for {name}. A host to which "
                "secrets are sent must be asked for by its own name.",
            )
        if not speaks_http(hello):
            await self._not_replaced(
                target, "The program offers HTTP/2 only, and placeholders are replaced in HTTP/1.1"
            )
        return speaks_http(hello)

    async def _intercept(
        self,
        target: ProxyTarget,
        given: HostSubstitutions,
        near: ByteStream,
        far: ByteStream,
        early: bytes,
    ) -> None:
        """A connection in which placeholders are replaced. The server's handshake comes first."""
        interception = Interception(target, given, self._substitutions.authority, self._relaying)
        server = await interception.server(far)
        try:
            client = await interception.client(near, early)
        except ssl.SSLError:
            await self._not_replaced(
                target, f"The program does not trust the certificate in {CERTIFICATE}"
            )
            return
        said = await interception.carry(client, server)
        if said is not None and not isinstance(server, Refusal):
            tunnel = Tunnel(client, server, self._pace, self._bounds.idle_seconds)
            await tunnel.run(
                pieces_of(client, said[0]), searched(pieces_of(server, said[1]), given)
            )

    async def _not_replaced(self, target: ProxyTarget, why: str) -> None:
        """Told once for each host: programs try again."""
        if (target.host, why) in self._told or len(self._told) > _MOST_TOLD:
            return
        self._told.add((target.host, why))
        reason: Reason = "placeholder_not_replaced"
        refusal = Refusal(0, why, reason=reason, host=target.host, port=target.port, hint=why)
        await self._reports.refused(refusal)

    async def _relay(
        self, peer: Peer, request: h11.Request, target: ProxyTarget, far: SocketStream
    ) -> None:
        """One plain request. It goes through h11 on both sides, so that nothing in it can pass for a
        second one. Anybody on the way could read a secret, so only networks that the operator named get one.
        """
        given = self._substitutions.towards(target) if self._is_named(far) else NOBODY
        relay = Relay(peer, HttpStream(far, h11.CLIENT, self._bounds), given, self._relaying)
        try:
            await relay.carry(request, target.authority, target.path.encode(), keep=False)
        except (h11.ProtocolError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream):
            raise Refusal(502, f"{target.host} did not answer with HTTP") from None

    def _is_named(self, far: SocketStream) -> bool:
        address = ip_address(far.extra(SocketAttribute.remote_address)[0])
        return any(
            address.version == network.version and address in network for network in self._networks
        )


def _check_bodiless(request: h11.Request) -> None:
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers):
        raise Refusal(400, "CONNECT has no body")
