"""The proxy to a session's repositories: what git asks of them over HTTP, and nothing else.

The sandbox asks for `/0/info/refs`, where 0 is the first of its repositories. The address and
the token are put on behind it (`upstream.py`); the sandbox has neither need nor way to see the token, or to
go elsewhere with it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Sequence
from typing import Final

import h11
import httpx2
from anyio.abc import ByteStream

from roost.egress.connections import UpstreamConnections
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal
from roost.egress.upstream import UpstreamClient, answering
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
        method = request.method.decode()
        body: bytes | AsyncIterable[bytes] = b""
        if method == "GET":
            await peer.no_body()
        else:
            body = peer.upload(request)
        with answering(peer, "the repository's server did not answer"):
            async with client.send(method, target, headers, body) as answer:
                await answer.pass_on(peer, answer.headers(b"www-authenticate"))
            await peer.send(h11.EndOfMessage())
            await peer.finish()


def _client(repository: Origin, connections: UpstreamConnections) -> UpstreamClient | None:
    """None if no connection can be made with its address: the session goes on with the others."""
    try:
        return UpstreamClient(repository, connections)
    except httpx2.InvalidURL:
        return None
