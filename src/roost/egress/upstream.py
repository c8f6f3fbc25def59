"""One origin, as a session uses it: its credential is put on every request, and taken out of every answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager

import h11
import httpx2

from roost.egress.connections import UpstreamConnections
from roost.egress.reports import Refusal
from roost.egress.secrets import NOTHING, PutOn, Redactor, can_be_sent, put_on
from roost.egress.wire import Headers, Peer, end_to_end
from roost.ports.egress import Origin

_NOT_PASSED_ON = (
    b"alt-svc",
    b"anthropic-organization-id",
    b"openai-organization",
    b"openai-project",
    b"set-cookie",
    b"strict-transport-security",
)
"""Answers' headers that are about the operator's account, or about a connection nobody inside has."""


class UpstreamClient:
    """What one session asks of one origin. :raises httpx2.InvalidURL: of a malformed address"""

    def __init__(self, origin: Origin, connections: UpstreamConnections) -> None:
        self._origin = origin
        self._url = httpx2.URL(origin.url)
        self._path = self._url.raw_path.rstrip(b"/")
        self._connections = connections
        self._last: tuple[str, PutOn] = ("", NOTHING)

    @property
    def host(self) -> str:
        """The origin's name, in ASCII: what cannot be written otherwise is no reason to fail."""
        return self._url.raw_host.decode()

    @property
    def port(self) -> int:
        """The port its URL names, else the one of its scheme."""
        return self._url.port or (443 if self._url.scheme == "https" else 80)

    @asynccontextmanager
    async def send(
        self, method: str, target: bytes, headers: Headers, body: bytes | AsyncIterable[bytes]
    ) -> AsyncGenerator[UpstreamAnswer, None]:
        """The answer's head, and its body to be passed on.

        :raises Refusal: the credential cannot be sent
        :raises httpx2.TransportError: there is no answer
        """
        given = await self._put_on()
        # Answers must arrive as they are: what is compressed cannot be looked at as it passes.
        sent = [*headers, *given.headers, (b"accept-encoding", b"identity")]
        path = self._path + target
        async with self._connections.send(self._url, method, path, sent, body) as response:
            yield UpstreamAnswer(response, given.forms)

    async def _put_on(self) -> PutOn:
        credential = self._origin.credential
        if credential is None:
            return NOTHING
        secret = await credential.secret()
        before, given = self._last
        if secret != before:
            if not can_be_sent(secret):
                raise Refusal(502, f"the credential for {self.host} cannot be sent")
            given = put_on(secret, credential.put)
            self._last = secret, given
        return given


class UpstreamAnswer:
    """An answer of an origin, on its way to the sandbox."""

    def __init__(self, response: httpx2.Response, forms: Sequence[bytes]) -> None:
        self.response = response
        self._forms = forms

    async def pass_on(
        self, peer: Peer, *drop: bytes, look: Callable[[bytes], None] = lambda data: None
    ) -> None:
        """Pass it on as it comes, without the secret; `look` sees the body as it was received.

        Headers about cookies and accounts are left out, and those to `drop`.
        """
        headers = self._headers(drop)
        await peer.send(h11.Response(status_code=self.response.status_code, headers=headers))
        redactor = Redactor(self._forms)
        async for data in self.response.aiter_bytes():
            look(data)
            if clean := redactor.feed(data):
                await peer.send(h11.Data(data=clean))
        if rest := redactor.flush():
            await peer.send(h11.Data(data=rest))

    def _headers(self, drop: Sequence[bytes]) -> Headers:
        drop = (*_NOT_PASSED_ON, *drop)
        if "content-encoding" in self.response.headers:  # it is passed on decoded
            drop = (*drop, b"content-encoding", b"content-length")
        redactor = Redactor(self._forms)
        return [
            (name, redactor.whole(value))
            for name, value in end_to_end(self.response.headers.raw, *drop)
        ]
