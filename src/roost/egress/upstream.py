"""One origin, as a session uses it: its credential is put on every request, and taken out of every answer."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol, TypeVar

import anyio
import h11
import httpx2

from roost.egress.connections import UpstreamConnections
from roost.egress.reports import Refusal
from roost.egress.secrets import (
    NOTHING,
    SHORTEST_SECRET,
    Forms,
    PutOn,
    RecentForms,
    Redactor,
    can_be_sent,
    is_readable,
    put_on,
)
from roost.egress.wire import Headers, end_to_end
from roost.errors import ModelKeyMissing, RoostError
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

_NOT_ACCEPTED: Final = 401
T = TypeVar("T")


class UpstreamClient:
    """What one session asks of one origin. A credential that is shorter than `shortest` is not looked for in
    answers.

    :raises httpx2.InvalidURL: of a malformed address
    """

    def __init__(
        self,
        origin: Origin,
        connections: UpstreamConnections,
        *,
        shortest: int = SHORTEST_SECRET,
    ) -> None:
        self._origin = origin
        self._url = httpx2.URL(origin.url)
        self._path = self._url.raw_path.rstrip(b"/")
        self._connections = connections
        self._shortest = shortest
        self._last: tuple[str, PutOn] = ("", NOTHING)
        self._recent = RecentForms()

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

        A request whose credential is not accepted is sent once more if there is another one by now, and if it
        was held: what has been passed on as it came cannot be sent again.

        :raises Refusal: the credential cannot be had or sent, or the address may not be reached
        :raises httpx2.TransportError: there is no answer
        """
        for last in (not isinstance(body, bytes), True):
            secret, given = await self._put_on()
            # Answers must arrive as they are: what is compressed cannot be looked at as it passes.
            sent = [*headers, *given.headers, (b"accept-encoding", b"identity")]
            asked = self._connections.send(
                self._url,
                method,
                self._path + target,
                sent,
                body,
                restricted=self._origin.restricted,
                # A tool may take hours, and a stream of events be silent for as long: hanging up ends that.
                patient=self._origin.protocol == "mcp",
            )
            async with asked as response:
                if (
                    last
                    or response.status_code != _NOT_ACCEPTED
                    or not await self._replaced(secret)
                ):
                    yield UpstreamAnswer(response, lambda: self._recent.forms)
                    return

    async def _put_on(self) -> tuple[str | None, PutOn]:
        credential = self._origin.credential
        secret = None if credential is None else await self._asked(credential.secret())
        if credential is None or secret is None:
            return None, NOTHING
        before, given = self._last
        if secret != before:
            if not can_be_sent(secret):
                raise Refusal(502, f"the credential for {self.host} cannot be sent")
            given = put_on(secret, credential.put, shortest=self._shortest)
            self._last = secret, given
            self._recent.remember(secret, lambda: given.forms)
        return secret, given

    async def _replaced(self, secret: str | None) -> bool:
        """Whether there is another one by now. :raises Refusal: it cannot be had"""
        credential = self._origin.credential
        if credential is None or secret is None:
            return False
        return await self._asked(credential.rejected(secret))

    async def _asked(self, credential: Awaitable[T]) -> T:
        """What the owner of a credential says. :raises Refusal: it cannot be had"""
        try:
            return await credential
        except RoostError as error:
            # Whoever gets a 5xx tries again, and a key that is not there does not come by itself.
            raise Refusal(
                403 if isinstance(error, ModelKeyMissing) else 502,
                f"the credential for {self.host} cannot be used: {error.message}",
                reason="credential_unavailable",
                host=self.host,
                port=self.port,
                hint=error.message,
            ) from None


class Recipient(Protocol):
    """Whoever gets an answer: at the other end of a connection, or in this process."""

    @property
    def is_unanswered(self) -> bool:
        """Whether its answer has not begun."""
        ...

    async def send(self, *events: h11.Event) -> None:
        """The next of it."""
        ...


class StreamFilter(Protocol):
    """Changes a body as it passes, without holding it up."""

    def feed(self, data: bytes) -> bytes:
        """As much of the stream as can be passed on now."""
        ...

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        ...


class UpstreamAnswer:
    """An answer of an origin, on its way to the sandbox."""

    def __init__(self, response: httpx2.Response, forms: Callable[[], Forms]) -> None:
        self.response = response
        self._forms = forms

    async def pass_on(
        self,
        peer: Recipient,
        headers: Headers,
        *filters: StreamFilter,
        look: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        """Pass it on as it comes, without the secret and with these headers. Trailers are left out.

        `filters` change what is left of the body; `look` sees the body as it was received.

        :raises httpx2.DecodingError: the body is encoded in a way that cannot be read
        """
        if not is_readable(self.response.headers.get("content-encoding", "")):
            raise httpx2.DecodingError("the body cannot be read")
        await peer.send(h11.Response(status_code=self.response.status_code, headers=headers))
        stages: Sequence[StreamFilter] = (Redactor(self._forms), *filters)
        async for data in self.response.aiter_bytes():
            look(data)
            for stage in stages:
                data = stage.feed(data)
            if data:
                await peer.send(h11.Data(data=data))
        rest = b""
        for stage in stages:
            rest = stage.feed(rest) + stage.flush()
        if rest:
            await peer.send(h11.Data(data=rest))

    def headers(self, *drop: bytes) -> Headers:
        """Its headers without the secret, without those about cookies and accounts, and those to `drop`."""
        drop = (*_NOT_PASSED_ON, *drop)
        if "content-encoding" in self.response.headers:  # it is passed on decoded
            drop = (*drop, b"content-encoding", b"content-length")
        return [
            (name, self.redacted(value))
            for name, value in end_to_end(self.response.headers.raw, *drop)
        ]

    def redacted(self, value: bytes) -> bytes:
        """A header's value without the secret."""
        return Redactor(self._forms).whole(value)


@contextmanager
def answering(peer: Recipient, otherwise: str) -> Generator[None, None, None]:
    """What is done inside answers a request. If the far side fails, the client is told so in these words, or,
    once its answer has begun, sees it cut off. The libraries' own words may quote what they could not send.

    :raises Refusal: there is no answer
    :raises anyio.BrokenResourceError: the answer was cut off
    """
    try:
        yield
    except (httpx2.TransportError, httpx2.DecodingError, h11.LocalProtocolError):
        if peer.is_unanswered:
            raise Refusal(502, otherwise) from None
        raise anyio.BrokenResourceError from None
