"""HTTP requests in which placeholders are replaced: over TLS that ends here, or in plain `http://`.

A connection from inside and one to its server belong together for as long as both last. Nothing is pooled, so
nothing of one request can reach another connection, let alone another session. The server has shown its
certificate for the host that was connected to before anything with a secret in it is sent.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

import anyio
import h11
import httpx2
import msgspec
from anyio.abc import ByteStream

from roost.egress.hosts import ProxyTarget
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal
from roost.egress.secrets import Forms, Redactor, is_readable
from roost.egress.server_name import Hello, HelloReader, Pieces, Unreadable, begins_as_tls
from roost.egress.substitution import (
    HostSubstitutions,
    Replacer,
    RequestSecrets,
    SecretsByPlaceholder,
    replaced_in_header,
    written_in,
)
from roost.egress.tls import HTTP, CertificateAuthority, TlsEnd, secured_client, secured_server
from roost.egress.wire import (
    Headers,
    HeldBytes,
    Holding,
    HttpStream,
    Peer,
    end_to_end,
    in_time,
    words_of,
)

_log = logging.getLogger(__name__)

_CHUNK: Final = 65536
_SOON: Final = 0.05
_SWITCHING: Final = 101
_BODILESS: Final = (204, 304)
_LONGEST_FRAME_HEAD: Final = 14
_ABSOLUTE: Final = re.compile(rb"https://([^/?#@]+)([/?][!-~]*)?", re.IGNORECASE)

Step = Coroutine[Any, Any, None]
Head = h11.Response | h11.InformationalResponse

Gone = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
"""What a stream raises whose other side hung up, or took too long."""


class Relaying(msgspec.Struct, frozen=True):
    """What all requests of a session share: its bounds, its bandwidth and the memory it may hold."""

    bounds: EgressBounds
    spend: Callable[[int], Awaitable[None]]
    held: HeldBytes


class Relay:
    """Passes requests of one connection on to one server, and its answers back."""

    def __init__(
        self, peer: Peer, server: HttpStream, given: HostSubstitutions, how: Relaying
    ) -> None:
        self._peer = peer
        self._server = server
        self._given = given
        self._how = how
        self._redactor = Redactor(given.forms)
        self._method = b""

    async def carry(self, request: h11.Request, authority: str, path: bytes, *, keep: bool) -> None:
        """One request and its answer. `keep`: another one may follow, and a client that hangs up is noticed.

        :raises Refusal: the request is malformed or too large
        :raises h11.ProtocolError: the server does not speak HTTP
        """
        self._method = request.method
        secrets = await self._given.secrets()
        self._redactor = Redactor(self._given.forms)
        headers = [(b"host", authority.encode()), *self._headers(request, secrets, keep=keep)]
        with self._how.held.holding() as holding:
            framing, replacer, body = await self._framed(request, secrets, holding)
            head = h11.Request(method=request.method, target=path, headers=[*headers, *framing])
            first = [head] if body is None else [head, h11.Data(data=body), h11.EndOfMessage()]
            await self._server.send(*first)
        left = replacer if body is None else None
        answer: Head | None = None
        if left is None:
            # Most answers come at once, and to watch the client meanwhile costs more than to wait for them.
            with anyio.move_on_after(_SOON):
                answer = await self._head()
        if answer is not None and _is_short(answer):
            await self._answer(answer, keep=keep)
            return
        await _while(
            partial(self._download, answer, keep=keep),
            beside=partial(self._upload, left, watch=keep),
        )

    def _headers(self, request: h11.Request, secrets: RequestSecrets, *, keep: bool) -> Headers:
        drop = [b"host", b"expect", b"content-length"]
        added: Headers = [] if keep else [(b"connection", b"close")]
        if self._given:
            # Answers must arrive as they are: what is compressed cannot be looked at as it passes.
            drop += [b"accept-encoding", b"sec-websocket-extensions"]
            added.append((b"accept-encoding", b"identity"))
        if keep and (protocol := _upgrade(request)):
            added += [(b"connection", b"upgrade"), (b"upgrade", protocol)]
        replacer = Replacer(secrets.header, self._how.bounds.header_secret_bytes)
        kept = [
            (name, replaced_in_header(replacer, name, value))
            for name, value in end_to_end(request.headers, *drop)
        ]
        self._given.note_replaced(replacer, "a header")
        return [*kept, *added]

    async def _framed(
        self, request: h11.Request, secrets: RequestSecrets, holding: Holding
    ) -> tuple[Headers, Replacer, bytes | None]:
        """How the end of the body is told; and the body, if it is held, or there is none.

        What is replaced may change its length. So a body is held, up to a bound; a larger one goes in chunks.
        """
        said = dict(request.headers)
        replacer = self._replacer(said, secrets)
        if b"transfer-encoding" in said:
            return [(b"transfer-encoding", b"chunked")], replacer, None
        if b"content-length" not in said:
            return [], replacer, await self._held_body(holding)
        size = int(said[b"content-length"])
        if not replacer:
            return [(b"content-length", b"%d" % size)], replacer, None
        if size > self._how.bounds.replaced_bytes:
            return [(b"transfer-encoding", b"chunked")], replacer, None
        whole = await self._held_body(holding)
        replacer = self._replacer(said, secrets, whole)
        body = replacer.whole(whole)
        holding.add(max(0, len(body) - size))
        await self._how.spend(len(body))
        self._given.note_replaced(replacer, "a body")
        return [(b"content-length", b"%d" % len(body))], replacer, body

    async def _held_body(self, holding: Holding) -> bytes:
        return bytes(await self._peer.held_body(holding, self._how.bounds.replaced_bytes))

    def _replacer(
        self, said: dict[bytes, bytes], secrets: RequestSecrets, body: bytes = b""
    ) -> Replacer:
        """Puts the secrets into a body with these headers: none if it is compressed."""
        put_in = written_in(secrets.body, said.get(b"content-type", b""), body)
        encoded = said.get(b"content-encoding", b"identity").lower() not in (b"identity", b"")
        if encoded and put_in:
            self._given.note_compressed()
            put_in = SecretsByPlaceholder()
        return Replacer(put_in, self._how.bounds.body_secret_bytes)

    async def _upload(self, replacer: Replacer | None, *, watch: bool) -> None:
        """Pass the body on, if it was not sent yet; then `watch` whether the client hangs up."""
        if replacer is not None:
            await self._pass_body(replacer)
        if watch:
            await self._peer.gone()
            raise anyio.BrokenResourceError

    async def _pass_body(self, replacer: Replacer) -> None:
        try:
            async with aclosing(self._peer.body()) as parts:
                async for data in parts:
                    for given in replacer.feed(data):
                        await self._how.spend(len(given))
                        await self._server.send(h11.Data(data=given))
            await self._server.send(h11.Data(data=replacer.flush()), h11.EndOfMessage())
        except anyio.BrokenResourceError:
            return  # a server may stop reading and still answer
        finally:
            self._given.note_replaced(replacer, "a body")

    async def _download(self, head: Head | None, *, keep: bool) -> None:
        if head is None:
            head = await in_time(self._how.bounds.idle_seconds, self._head())
        await self._answer(head, keep=keep)

    async def _head(self) -> Head:
        """How the answer begins, or the end of HTTP; what a server says before it is not passed on."""
        while True:
            event = await self._server.receive()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise anyio.BrokenResourceError  # it hung up without an answer
            if event.status_code == _SWITCHING:
                return event

    async def _switch(self, event: h11.InformationalResponse) -> None:
        """To another protocol, as the client has asked for."""
        said = [pair for pair in event.headers if pair[0] in (b"connection", b"upgrade")]
        headers = [*self._redacted(end_to_end(event.headers)), *said]
        await self._peer.send(h11.InformationalResponse(status_code=_SWITCHING, headers=headers))

    async def _answer(self, event: Head, *, keep: bool) -> None:
        if isinstance(event, h11.InformationalResponse):
            await self._switch(event)
            return
        decoded = bool(self._given) and self._is_decoded(event)
        # It is passed on decoded. What it says about other protocols is not true behind a proxy.
        drop = [b"alt-svc"] if self._given else []
        drop += [b"content-encoding", b"content-length"] if decoded else []
        headers = self._redacted(end_to_end(event.headers, *drop))
        if not keep or _closes(event):
            headers.append((b"connection", b"close"))
        head = h11.Response(status_code=event.status_code, headers=headers)
        if decoded:
            await self._peer.send(head)
            async with aclosing(_decoded(event, self._parts())) as pieces:
                async for data in pieces:
                    await self._pass(data)
            await self._peer.send(*self._rest())
        else:
            await self._pass_all([head])

    def _is_decoded(self, event: h11.Response) -> bool:
        """Whether it is passed on decoded, because it is encoded although it was asked not to be.

        :raises Refusal: it cannot be decoded, so nobody can say whether the secret is in it
        """
        said = words_of(event.headers, b"content-encoding")
        if said in ([], [b""], [b"identity"]):
            return False
        encodings = b",".join(said).decode("ascii", "replace")
        is_part = event.status_code == httpx2.codes.PARTIAL_CONTENT
        if (is_part or not is_readable(encodings)) and self._has_body(event):
            raise Refusal(502, "the answer is encoded in a way that cannot be searched for secrets")
        return True

    def _has_body(self, event: h11.Response) -> bool:
        if self._method == b"HEAD" or event.status_code in _BODILESS:
            return False
        return (b"content-length", b"0") not in event.headers

    async def _pass(self, data: bytes) -> None:
        if sent := await self._clean(data):
            await self._peer.send(*sent)

    async def _pass_all(self, sent: list[h11.Event]) -> None:
        """The body as it comes: what is there together goes out together, and nothing waits for more."""
        while True:
            event = self._server.h11.next_event()
            if event is h11.NEED_DATA:
                if sent:
                    await self._peer.send(*sent)
                event, sent = await self._server.receive(self._how.bounds.idle_seconds), []
            if not isinstance(event, h11.Data):
                await self._peer.send(*sent, *self._rest())
                return
            sent += await self._clean(bytes(event.data))

    async def _clean(self, data: bytes) -> list[h11.Event]:
        """What can be passed on of a piece, without the secrets."""
        await self._how.spend(len(data))
        clean = self._redactor.feed(data)
        return [h11.Data(data=clean)] if clean else []

    def _rest(self) -> list[h11.Event]:
        """How a body ends."""
        rest = self._redactor.flush()
        return [*([h11.Data(data=rest)] if rest else []), h11.EndOfMessage()]

    def _redacted(self, headers: Headers) -> Headers:
        return [(name, self._redactor.whole(value)) for name, value in headers]

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """The body of the answer, as it comes."""
        while True:
            event = await self._server.receive(self._how.bounds.idle_seconds)
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)


def _upgrade(request: h11.Request) -> bytes | None:
    """The protocol that a client asks to go on with: WebSockets, or nothing that can be passed on."""
    asked = next((value for name, value in request.headers if name == b"upgrade"), b"")
    return asked if asked.lower() == b"websocket" else None


def _is_short(head: Head) -> bool:
    """Whether an answer will be over in a moment."""
    size = next((value for name, value in head.headers if name == b"content-length"), None)
    return size is not None and int(size) <= _CHUNK


def _closes(event: h11.Response) -> bool:
    return event.http_version < b"1.1" or b"close" in words_of(event.headers, b"connection")


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._parts:
            yield data


async def _decoded(
    event: h11.Response, parts: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """:raises anyio.BrokenResourceError: it is not what its headers say"""
    headers = [(name, value) for name, value in event.headers]
    response = httpx2.Response(event.status_code, headers=headers, stream=_Stream(parts))
    try:
        async with aclosing(parts):
            async for data in response.aiter_bytes():
                yield data
    except httpx2.DecodingError as error:
        raise anyio.BrokenResourceError from error


async def _while(main: Callable[[], Step], *, beside: Callable[[], Step]) -> None:
    """Both at once, until the main one is done: a server may answer before it has read all."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beside)
            await main()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class Opening:
    """How a tunnel begins: what was heard of each side before it was decided what to do with it."""

    def __init__(self, near: bytes, far: bytes = b"", hello: Hello | None = None) -> None:
        self.near = near
        self.far = far
        self.hello = hello


async def opening(near: ByteStream, far: ByteStream, early: bytes, bounds: EgressBounds) -> Opening:
    """Listen until it is clear whether a client begins with TLS. A server that speaks first does not."""
    heard = {near: early} if early else await _first(near, far)
    said, answered = heard.get(near, b""), heard.get(far, b"")
    if not said or not begins_as_tls(said):
        return Opening(said, answered)
    reader, raw = HelloReader(bounds.head_bytes), said
    try:
        with anyio.move_on_after(bounds.head_seconds):
            while (hello := reader.feed(said)) is None:
                said = await near.receive(_CHUNK)
                raw += said
            return Opening(raw, answered, hello)
    except (Unreadable, anyio.EndOfStream):
        pass
    return Opening(raw, answered)


async def _first(near: ByteStream, far: ByteStream) -> dict[ByteStream, bytes]:
    """What comes first, from whichever side. Empty: the end of it.

    :raises anyio.BrokenResourceError: one of the two is gone
    """
    heard: dict[ByteStream, bytes] = {}
    try:
        async with anyio.create_task_group() as tasks:

            async def listen(stream: ByteStream) -> None:
                try:
                    heard[stream] = await stream.receive(_CHUNK)
                except anyio.EndOfStream:
                    heard[stream] = b""
                tasks.cancel_scope.cancel()

            tasks.start_soon(listen, near)
            tasks.start_soon(listen, far)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return heard


class MessageRedactor:
    """Takes secrets out of a server's WebSocket frames (RFC 6455, 5.2).

    Nothing of a frame waits for the next one, which may never come.
    """

    def __init__(self, forms: Callable[[], Forms]) -> None:
        self._redactor = Redactor(forms)
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """As much as can be passed on now."""
        passed, at = bytearray(), 0
        while at < len(data):
            if self._left == 0:
                head = self._head + data[at : at + _LONGEST_FRAME_HEAD]
                size = _frame_head_size(head)
                at += min(size, len(head)) - len(self._head)
                self._head = head[:size]
                if len(head) >= size:
                    passed += self._head
                    self._left, self._head = _payload_size(self._head), b""
            else:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                passed += self._redactor.feed(part)
                if self._left == 0:
                    passed += self._redactor.flush()
        return bytes(passed)


def _frame_head_size(head: bytes) -> int:
    """How long the head of a frame is, as far as that can be told by its first bytes."""
    second = head[1] if len(head) > 1 else 0
    return 2 + {126: 2, 127: 8}.get(second & 127, 0) + (4 if second & 128 else 0)


def _payload_size(head: bytes) -> int:
    size = head[1] & 127
    if size < 126:
        return size
    return int.from_bytes(head[2 : 4 if size == 126 else 10])


async def searched(pieces: Pieces, given: HostSubstitutions) -> Pieces:
    """What a server says after it has switched to WebSockets, without the secrets."""
    redactor = MessageRedactor(given.forms)
    async with aclosing(pieces):
        async for data in pieces:
            if clean := redactor.feed(data):
                yield clean


def speaks_http(hello: Hello) -> bool:
    """Whether a client can do without HTTP/2."""
    return not hello.protocols or HTTP.encode() in hello.protocols


class Interception:
    """A TLS connection from inside that ends here, and the one to its server that takes its place."""

    def __init__(
        self,
        target: ProxyTarget,
        given: HostSubstitutions,
        authority: CertificateAuthority,
        how: Relaying,
    ) -> None:
        self._target = target
        self._given = given
        self._authority = authority
        self._how = how
        self._names = _names(target)

    async def server(self, far: ByteStream) -> TlsEnd | Refusal:
        """The server, with its certificate checked; a refusal to be told to the client if it has no good one."""
        host, bounds = self._target.host, self._how.bounds
        try:
            return await secured_server(far, host, bounds.connect_seconds)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message or "it cannot be verified"
            return Refusal(502, f"the certificate of {host} is not accepted: {why}")
        except (ssl.SSLError, UnicodeError, *Gone):
            return Refusal(502, f"{host} does not answer with TLS")

    async def client(self, near: ByteStream, early: bytes) -> TlsEnd:
        """The client, if it accepts our certificate. :raises ssl.SSLError: it does not"""
        bounds, context = self._how.bounds, self._authority.context(self._target.host)
        return await secured_client(near, early, context, bounds.head_seconds)

    async def carry(self, near: TlsEnd, far: TlsEnd | Refusal) -> tuple[bytes, bytes] | None:
        """Pass requests on until one of the two hangs up.

        What both have said by then in another protocol, if they have gone on with one, is given back.
        """
        peer = Peer(near, self._how.bounds)
        try:
            if isinstance(far, Refusal):
                if await peer.request() is not None:
                    raise far
                return None
            server = HttpStream(far, h11.CLIENT, self._how.bounds)
            await self._requests(peer, server)
            if peer.h11.our_state is h11.SWITCHED_PROTOCOL:
                return peer.h11.trailing_data[0], server.h11.trailing_data[0]
            await peer.hang_up()
        except Refusal as refusal:
            text = f"roost: {refusal.message}\n".encode()
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await peer.respond(refusal.status, [kind], text, reason=refusal.message)
        return None

    async def _requests(self, peer: Peer, server: HttpStream) -> None:
        relay = Relay(peer, server, self._given, self._how)
        is_first = True
        while (request := await _next_request(peer, server)) is not None:
            path = self._path(request)
            try:
                await relay.carry(request, self._names[0], path, keep=True)
            except (h11.ProtocolError, *Gone):
                if is_first and peer.h11.our_state is h11.SEND_RESPONSE:
                    host = self._target.host
                    raise Refusal(502, f"{host} did not answer with HTTP") from None
                # The client has rules of its own for a connection that ends after it has served before.
                raise anyio.BrokenResourceError from None
            if not _is_over(server) or not peer.again():
                return
            server.h11.start_next_cycle()
            is_first = False

    def _path(self, request: h11.Request) -> bytes:
        """What it asks for, if that is of the host it has connected to. :raises Refusal: it is not"""
        if request.method == b"CONNECT":
            raise Refusal(405, "this is not a proxy")
        absolute = _ABSOLUTE.fullmatch(request.target)
        hosts = [value for name, value in request.headers if name == b"host"]
        path = request.target
        if absolute is not None:
            hosts.append(absolute[1])
            path = absolute[2] or b"/"
            path = path if path.startswith(b"/") else b"/" + path
        if not all(host.decode("ascii", "replace").lower() in self._names for host in hosts):
            raise Refusal(421, f"this connection is to {self._target.host}, and to no other host")
        if not path.startswith(b"/") and (request.method, path) != (b"OPTIONS", b"*"):
            raise Refusal(400, "that is not a path")
        return path


def _names(target: ProxyTarget) -> tuple[str, ...]:
    """How a request may name its host, the usual one first."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    full = f"{host}:{target.port}"
    return (host, full) if target.port == 443 else (full,)


def _is_over(server: HttpStream) -> bool:
    """Whether a server's answer is complete, and it may be asked again."""
    return server.h11.our_state is h11.DONE and server.h11.their_state is h11.DONE


async def _next_request(peer: Peer, server: HttpStream) -> h11.Request | None:
    """The next request; None if one of the two has hung up, or the server speaks without being asked."""
    # Most come at once, and to watch the server meanwhile costs more than to wait for them.
    if await peer.heard(_SOON):
        return None if server.has_surplus else await peer.request()
    request: h11.Request | None = None

    async def watch(scope: anyio.CancelScope) -> None:
        with suppress(*Gone):
            await server.heard()
        scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            request = await peer.request()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return None if server.has_surplus else request
