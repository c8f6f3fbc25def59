"""The road to a session's repositories: what git asks of them over HTTP, and nothing else.

The sandbox asks for `/0/info/refs`, where 0 is the first of its repositories. The address and the token
are put on here; the sandbox has neither need nor way to see the token, or to go elsewhere with it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from typing import Final

import anyio
import h11
import httpx2
from anyio.abc import ByteStream
from pydantic import SecretStr

from roost.egress.ask import Ask
from roost.egress.client import Client
from roost.egress.options import Bounds, Upstream
from roost.egress.refusal import Refusal
from roost.egress.upstream import Line
from roost.egress.wire import Headers, Peer
from roost.ports.egress import Repository

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


class GitRoad:
    """Serves the connections that arrive at one session's git socket."""

    def __init__(self, repositories: Sequence[Repository], client: Client, bounds: Bounds) -> None:
        self._lines = [_line(repository, client) for repository in repositories]
        self._bounds = bounds

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests on a connection until it ends."""
        peer = Peer(stream, self._bounds)
        try:
            while (request := await peer.request()) is not None:
                await self._answer(peer, request)
                if not peer.again():
                    return
        except Refusal as refusal:
            headers: Headers = [(b"content-type", b"text/plain")]
            await peer.respond(refusal.status, headers, f"roost: {refusal.message}\n".encode())

    async def _answer(self, peer: Peer, request: h11.Request) -> None:
        found = _ROUTE.fullmatch(f"{request.method.decode()} {request.target.decode()}")
        index = int(found[1] or found[3]) if found else len(self._lines)
        if found is None or index >= len(self._lines):
            raise Refusal(404, "that is not a repository of this session")
        line = self._lines[index]
        if line is None:
            raise Refusal(
                404, "this repository's address is malformed: give it to the session again"
            )
        headers = [pair for pair in request.headers if pair[0] in _CARRIED]
        target = (found[2] or found[4]).encode()
        body = await self._body(peer, request)
        await self._forward(peer, line, Ask(request.method.decode(), target, headers, body))

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

    async def _forward(self, peer: Peer, line: Line, ask: Ask) -> None:
        try:
            async with line.send(ask) as response:
                headers = [
                    pair for pair in line.headers(response) if pair[0] != b"www-authenticate"
                ]
                await peer.send(h11.Response(status_code=response.status_code, headers=headers))
                redactor = line.redactor()
                async for data in response.aiter_bytes():
                    if clean := redactor.feed(data):
                        await peer.send(h11.Data(data=clean))
                if rest := redactor.flush():
                    await peer.send(h11.Data(data=rest))
            await peer.send(h11.EndOfMessage())
            await peer.finish()
        except (httpx2.TransportError, httpx2.DecodingError, h11.LocalProtocolError):
            if peer.h11.our_state is h11.SEND_RESPONSE:
                raise Refusal(502, "the repository's server did not answer") from None
            raise anyio.BrokenResourceError from None


def _line(repository: Repository, client: Client) -> Line | None:
    """None if no connection can be made with its address: the session goes on with the others."""
    key = None if repository.token is None else SecretStr(repository.token)
    # No dialect of a model is spoken here; it only names what inside is told, which is not asked.
    upstream = Upstream(dialect="anthropic", base_url=repository.url, key=key, scheme="basic")
    try:
        return Line(upstream, client)
    except httpx2.InvalidURL:
        return None
