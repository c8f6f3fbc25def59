"""HTTP/1.1 over a stream: h11 does the parsing, this adds the waiting, and a bound to each wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

import anyio
import h11
from anyio.abc import ByteStream

from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal

T = TypeVar("T")
Headers = list[tuple[bytes, bytes]]

_CHUNK = 65536
_RETRY_SECONDS = 2
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

_NEVER_NAMED = frozenset((b"content-length", b"transfer-encoding", b"host"))


def end_to_end(headers: Iterable[tuple[bytes, bytes]], *drop: bytes) -> Headers:
    """The headers that are not about this one connection, without those to drop."""
    pairs = [(name.lower(), value) for name, value in headers]
    left_out = _HOP_BY_HOP.union(drop, words_of(pairs, b"connection"))
    if b"transfer-encoding" in [name for name, _ in pairs]:
        # Where both are given the chunks hold, and a length beside them must not go on (RFC 9112, 6.3).
        left_out |= {b"content-length"}
    return [(name, value) for name, value in pairs if name not in left_out]


def words_of(pairs: Iterable[tuple[bytes, bytes]], header: bytes) -> list[bytes]:
    """What a header with a list says in lower case, all of its lines together."""
    values = [value for name, value in pairs if name == header]
    return [word.strip() for word in b",".join(values).lower().split(b",")] if values else []


def _check_framing(request: h11.Request) -> None:
    """Refuse what another server may find the end of in another place. h11 refuses the rest.

    :raises Refusal: its length is said twice, or only for the first server on the way
    """
    names = {name for name, _ in request.headers}
    both = {b"content-length", b"transfer-encoding"} <= names
    old = b"transfer-encoding" in names and request.http_version < b"1.1"
    if both or old or not _NEVER_NAMED.isdisjoint(words_of(request.headers, b"connection")):
        raise Refusal(400, "the length of the request is ambiguous")


async def in_time(seconds: float, step: Awaitable[T]) -> T:
    """What a step gives. Each piece of an answer is sent so, and `anyio.fail_after` takes nearly twice the time.

    :raises TimeoutError: it is not done within so many seconds
    """
    with anyio.move_on_after(seconds):
        return await step
    raise TimeoutError


class HeldBytes:
    """So many bytes at a time, perhaps out of a larger share."""

    def __init__(self, most: int, of: HeldBytes | None = None) -> None:
        self._most = most
        self._of = of
        self._taken = 0

    @contextmanager
    def holding(self) -> Generator[Holding, None, None]:
        """What one request holds, until the context ends."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            self.give_back(holding.size)

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more; then they are taken."""
        if self._taken + size > self._most or (self._of is not None and not self._of.take(size)):
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """So many bytes are not held any more."""
        self._taken -= size
        if self._of is not None:
            self._of.give_back(size)


class Holding:
    """What one request holds of a share."""

    def __init__(self, share: HeldBytes) -> None:
        self.size = 0
        self._share = share

    def add(self, size: int) -> None:
        """Hold so many bytes more. :raises Refusal: there is no room for them"""
        if not self._share.take(size):
            raise Refusal(
                429, "too many large requests at the same time", retry_after=_RETRY_SECONDS
            )
        self.size += size


class HttpStream:
    """One HTTP/1.1 connection, at either end of it."""

    def __init__(
        self, stream: ByteStream, role: type[h11.CLIENT | h11.SERVER], bounds: EgressBounds
    ) -> None:
        self.h11 = h11.Connection(role, max_incomplete_event_size=bounds.head_bytes)
        self._stream = stream
        self._bounds = bounds

    async def send(self, *events: h11.Event) -> None:
        """Send, in one write.

        :raises TimeoutError: the other side does not read
        :raises anyio.BrokenResourceError: the other side is gone
        """
        data = b"".join(self.h11.send(event) or b"" for event in events)
        if data:
            await in_time(self._bounds.send_seconds, self._stream.send(data))

    async def receive(
        self, seconds: float | None = None
    ) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """The next event of the connection, for which is waited so long at most.

        :raises h11.RemoteProtocolError: what came is not HTTP, or was cut off
        :raises TimeoutError: nothing came in time
        """
        event = self.h11.next_event()
        if (
            event is not h11.NEED_DATA
        ):  # most of what is asked for has come already, and needs no clock
            return event
        return await (self._come() if seconds is None else in_time(seconds, self._come()))

    async def _come(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        while True:
            if self.h11.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._fill()
            if (event := self.h11.next_event()) is not h11.NEED_DATA:
                return event

    async def heard(self, seconds: float | None = None) -> bool:
        """Whether the other side says something, or hangs up, within so many seconds."""
        if not self.has_surplus:
            with anyio.move_on_after(seconds):
                await self._fill()
        return self.has_surplus

    @property
    def has_surplus(self) -> bool:
        """Whether more has come than belongs to the messages that were read, or the other side is gone."""
        return self.h11.trailing_data != (b"", False)

    async def _fill(self) -> bool:
        """Read once. Whether there was something to read, and not the end."""
        try:
            data = await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            data = b""
        self.h11.receive_data(data)
        return bool(data)


class Peer(HttpStream):
    """A connection from inside a sandbox, which we answer."""

    def __init__(self, stream: ByteStream, bounds: EgressBounds) -> None:
        super().__init__(stream, h11.SERVER, bounds)
        self._bodiless = False
        self._whole = anyio.Event()

    async def serve(
        self,
        answer: Callable[[Peer, h11.Request], Awaitable[None]],
        refuse: Callable[[Peer, Refusal], Awaitable[None]],
    ) -> None:
        """Answer one request after another until the connection ends; a refusal ends it."""
        try:
            while (request := await self.request()) is not None:
                await answer(self, request)
                if not self.again():
                    return
        except Refusal as refusal:
            await refuse(self, refusal)

    async def request(self) -> h11.Request | None:
        """The head of the next request; None if there is none.

        Waiting for one may take long, but once begun it must come quickly: else a connection costs
        a client nothing and us a slot.

        :raises Refusal: it is malformed, too large, or too slow
        """
        try:
            if not await self.heard(self._bounds.keep_alive_seconds):
                return None
            event = await self.receive(self._bounds.head_seconds)
        except h11.RemoteProtocolError as error:
            raise _malformed(error) from None
        except TimeoutError:
            raise _too_slow() from None
        if not isinstance(event, h11.Request):
            return None
        self._bodiless = event.method == b"HEAD"
        self._whole = anyio.Event()
        if event.http_version not in (b"1.0", b"1.1"):
            raise Refusal(505, "only HTTP/1.1 is spoken here")
        _check_framing(event)
        return event

    async def body(self) -> AsyncGenerator[bytes, None]:
        """The body of the request whose head was read, as it comes.

        :raises Refusal: it is malformed, or was cut off
        """
        while (data := await self._part()) is not None:
            yield data

    async def _part(self, seconds: float | None = None) -> bytes | None:
        """A piece of the body; None: it has ended. :raises Refusal: it is malformed, cut off, or too slow"""
        try:
            event = await self.receive(seconds)
        except h11.RemoteProtocolError as error:
            raise _malformed(error) from None
        except TimeoutError:
            raise _too_slow() from None
        if isinstance(event, h11.Data):
            return bytes(event.data)
        self._whole.set()
        return None

    async def no_body(self) -> None:
        """See to it that the request whose head was read has no body. :raises Refusal: it has"""
        if await self._part() is not None:
            raise Refusal(400, "such a request has no body")

    async def held_body(self, holding: Holding, most: int) -> bytearray:
        """All of the body. What has come is held, not what was announced: that costs a client nothing.

        :raises Refusal: it is malformed, too slow or too large, or there is no room for it
        """
        body, ends = bytearray(), anyio.current_time() + self._bounds.body_seconds
        while (data := await self._part(ends - anyio.current_time())) is not None:
            if len(body) + len(data) > most:
                raise too_large(most)
            holding.add(len(data))
            body += data
        return body

    def upload(self, request: h11.Request) -> AsyncGenerator[bytes, None]:
        """The body of a request that may be large, as it comes: no more of it is held than is being sent on.

        :raises Refusal: it says that it is too large; reading it, that it is, or is too slow
        """
        said = next((value for name, value in request.headers if name == b"content-length"), b"0")
        self._check_size(int(said))
        return self._upload()

    async def _upload(self) -> AsyncGenerator[bytes, None]:
        patience, size = self._bounds.body_seconds, 0
        while True:
            # Only the sandbox is hurried: the server's side has a time of its own for each piece.
            began = anyio.current_time()
            data = await self._part(patience)
            patience -= anyio.current_time() - began
            if data is None:
                return
            self._check_size(size := size + len(data))
            yield data

    def _check_size(self, size: int) -> None:
        if size > self._bounds.body_bytes:
            raise Refusal(413, f"at most {self._bounds.body_bytes} bytes can be sent")

    async def gone(self) -> None:
        """Returns when the client has hung up while it is being answered.

        What it sends ahead of its next request is kept, up to a bound; beyond it, it waits.
        """
        await self._whole.wait()  # until then its hanging up is noticed by whoever reads the body
        while len(self.h11.trailing_data[0]) < _CHUNK:
            if not await self._fill():
                return
        await anyio.sleep_forever()

    @property
    def is_unanswered(self) -> bool:
        """Whether the answer to its request has not begun."""
        return self.h11.our_state is h11.SEND_RESPONSE

    async def unless_gone(self, answer: Callable[[], Awaitable[None]]) -> None:
        """Answer, until the client hangs up: then the far side need not go on for it."""
        try:
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    await self.gone()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                await answer()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def respond(self, status: int, headers: Headers, body: bytes, reason: str = "") -> None:
        """A whole answer, after which the connection is over."""
        if self.h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        size = (b"content-length", str(len(body)).encode())
        head = h11.Response(
            status_code=status,
            headers=[*headers, size, (b"connection", b"close")],
            reason=reason.encode("ascii", "replace"),
        )
        try:
            await self.send(
                head, h11.Data(data=b"" if self._bodiless else body), h11.EndOfMessage()
            )
            await self._linger()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def last_words(self, data: bytes) -> None:
        """Bytes after which a connection that has left HTTP is over."""
        try:
            await in_time(self._bounds.send_seconds, self._stream.send(data))
            await self._linger()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def hang_up(self) -> None:
        """End the connection such that the client can read all that it was sent."""
        try:
            await self._linger()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def finish(self) -> None:
        """After an answer that came before the request was read: let the client read it."""
        if self.h11.their_state is h11.SEND_BODY:
            await self._linger()

    async def _linger(self) -> None:
        """Let the client finish talking: closing on unread data would take the answer away again."""
        await self._stream.send_eof()
        with anyio.move_on_after(self._bounds.linger_seconds):
            try:
                while await self._stream.receive(_CHUNK):
                    pass
            except anyio.EndOfStream:
                return

    def again(self) -> bool:
        """Whether another request may follow on this connection."""
        if self.h11.our_state is not h11.DONE or self.h11.their_state is not h11.DONE:
            return False
        self.h11.start_next_cycle()
        return True


def too_large(most: int) -> Refusal:
    """The answer to a request whose body has more bytes than this."""
    return Refusal(413, f"a request has at most {most} bytes")


def _too_slow() -> Refusal:
    return Refusal(408, "the request took too long to arrive")


def _malformed(error: h11.RemoteProtocolError) -> Refusal:
    status = error.error_status_hint
    return Refusal(
        status, "the request's head is too large" if status == 431 else "that is not HTTP"
    )
