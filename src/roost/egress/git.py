"""The proxy to a session's repositories: what git asks of them over HTTP, and nothing else.

The sandbox asks for `/0/info/refs`, where 0 is the first of its repositories. The address and
the token are put on behind it (`upstream.py`); the sandbox has neither need nor way to see the token, or to
go elsewhere with it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final

import anyio
import h11
import httpx2
from anyio.abc import ByteStream

from roost.egress.connections import UpstreamConnections
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal
from roost.egress.upstream import UpstreamAnswer, UpstreamClient
from roost.egress.wire import Headers, Peer
from roost.ports.egress import Origin

_SERVICES: Final = "git-upload-pack|git-receive-pack"
_ROUTE: Final = re.compile(
    rf"(?:GET /(\d{{1,3}})(?:\.git)?(/info/refs\?service=(?:{_SERVICES}))"
    rf"|POST /(\d{{1,3}})(?:\.git)?(/(?:{_SERVICES})))"
)
_CARRIED: Final = frozenset(
    (
        b"accept",
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"git-protocol",
        b"user-agent",
    )
)


class GitProxy:
    """Serves the connections that arrive at one session's git socket."""

    def __init__(
        self, repositories: Sequence[Origin], connections: UpstreamConnections, bounds: EgressBounds
    ) -> None:
        self._clients = [_client(repository, connections) for repository in repositories]
        self._bounds = bounds

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests on a connection until it ends."""
        await Peer(stream, self._bounds).serve(self._answer, self._refuse)

    async def _refuse(self, peer: Peer, refusal: Refusal) -> None:
        headers: Headers = [(b"content-type", b"text/plain")]
        await peer.respond(refusal.status, headers, f"roost: {refusal.message}\n".encode())

    async def _answer(self, peer: Peer, request: h11.Request) -> None:
        found = _ROUTE.fullmatch(f"{request.method.decode()} {request.target.decode()}")
        index = int(found[1] or found[3]) if found else len(self._clients)
        if found is None or index >= len(self._clients):
            raise Refusal(404, "that is not a repository of this session")
        client = self._clients[index]
        if client is None:
            raise Refusal(
                404, "this repository's address is malformed: give it to the session again"
            )
        headers = [pair for pair in request.headers if pair[0] in _CARRIED]
        target = (found[2] or found[4]).encode()
        body = await self._body(peer, request)
        await self._forward(peer, client.send(request.method.decode(), target, headers, body))

    async def _body(self, peer: Peer, request: h11.Request) -> bytes | AsyncIterable[bytes]:
        if request.method == b"GET":
            async with aclosing(peer.body()) as parts:
                async for _ in parts:
                    raise Refusal(400, "a GET request has no body")
            return b""
        said = next((value for name, value in request.headers if name == b"content-length"), b"0")
        self._check_size(int(said))
        return self._pieces(peer)

    async def _pieces(self, peer: Peer) -> AsyncGenerator[bytes, None]:
        """A push as it comes: it may be large, so no more of it is held than is being sent on."""
        patience, size = self._bounds.body_seconds, 0
        async with aclosing(peer.body()) as parts:
            while True:
                began = anyio.current_time()
                try:
                    # Only the sandbox is hurried: the server's side has a time of its own for each piece.
                    with anyio.fail_after(patience):
                        data = await anext(parts, b"")
                except TimeoutError:
                    raise Refusal(408, "the request took too long to arrive") from None
                patience -= anyio.current_time() - began
                if not data:
                    return
                self._check_size(size := size + len(data))
                yield data

    def _check_size(self, size: int) -> None:
        if size > self._bounds.body_bytes:
            raise Refusal(413, f"at most {self._bounds.body_bytes} bytes can be sent")

    async def _forward(self, peer: Peer, sent: AbstractAsyncContextManager[UpstreamAnswer]) -> None:
        try:
            async with sent as answer:
                await answer.pass_on(peer, b"www-authenticate")
            await peer.send(h11.EndOfMessage())
            await peer.finish()
        # The libraries' own words are not passed on: they may quote what they could not send.
        except (httpx2.TransportError, httpx2.DecodingError, h11.LocalProtocolError):
            if peer.h11.our_state is h11.SEND_RESPONSE:
                raise Refusal(502, "the repository's server did not answer") from None
            raise anyio.BrokenResourceError from None


def _client(repository: Origin, connections: UpstreamConnections) -> UpstreamClient | None:
    """None if no connection can be made with its address: the session goes on with the others."""
    try:
        return UpstreamClient(repository, connections)
    except httpx2.InvalidURL:
        return None
