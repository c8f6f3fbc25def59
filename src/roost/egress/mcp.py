"""The proxy to one MCP server: what MCP sends over HTTP, as it is, with the token put on outside.

The server has a port of its own inside, and its path stays as it is: clients resolve relative addresses, and
compare origins. Requests and answers pass byte for byte, for whatever revision of the protocol both sides
speak: POST, GET and DELETE, whole answers and streams of events, with sessions and without. Of the server's
host nothing else can be reached: only the server's own path, and those that it names itself, in the `endpoint`
event of the older transport (HTTP+SSE) and in redirects. Clients inside must not try to sign in by themselves,
so they do not see that they could: no `www-authenticate`, and nothing at `/.well-known/` or `/register`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

import h11
import httpx2
import msgspec
from anyio.abc import ByteStream
from msgspec.structs import replace

from roost.egress.connections import UpstreamConnections
from roost.egress.hosts import NetworkRules, target_of
from roost.egress.loopback import LocalServer, with_word, without_word
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal, Reports
from roost.egress.upstream import UpstreamAnswer, UpstreamClient, answering
from roost.egress.wire import Headers, HeldBytes, Holding, Peer
from roost.ports.egress import Origin

_METHODS: Final = ("POST", "GET", "DELETE")
_CARRIED: Final = re.compile(
    rb"accept|content-type|last-event-id|mcp-.*|traceparent|tracestate|user-agent"
)
_DROPPED: Final = (b"www-authenticate", b"location")
_HELD: Final = 256 * 1024
"""Bytes of a request that are held, so that it can be sent again with a new token; a larger one is passed on
as it comes."""

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_EVENT: Final = 64 * 1024
_MOST_NAMED: Final = 64
"""How many paths that a server has named can be reached: the newest ones."""
_FIRST_ERROR: Final = 400
_NOT_ACCEPTED: Final = 401
_SERVER_ERROR: Final = -32000  # of JSON-RPC: of the implementation's own choice


class McpProxy:
    """Serves the connections that arrive at the socket of one of a session's MCP servers.

    `local` is where its session finds it. Without `rules`, which are a sandbox's, it may be anywhere.
    """

    def __init__(
        self,
        server: Origin,
        local: LocalServer,
        connections: UpstreamConnections,
        rules: NetworkRules | None,
        reports: Reports,
        bounds: EgressBounds,
        held: HeldBytes,
    ) -> None:
        self._name = server.name
        self._addresses = _Addresses(httpx2.URL(server.url), local)
        self._client = UpstreamClient(replace(server, url=self._addresses.root), connections)
        self._rules = rules
        self._reports = reports
        self._bounds = bounds
        self._held = held
        self._has_told = False

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests on a connection until it ends."""
        await Peer(stream, self._bounds).serve(self._answer, self._refuse)

    async def _answer(self, peer: Peer, request: h11.Request) -> None:
        target = self._addresses.outside(request.target)
        if target is None:
            raise Refusal(404, "that is not the address of this MCP server")
        if request.method.decode() not in _METHODS:
            raise Refusal(405, f"an MCP server takes {', '.join(_METHODS)}")
        self._check_rules()
        with self._held.holding() as holding:
            body = await self._body(peer, request, holding)
            await peer.unless_gone(partial(self._forward, peer, request, target, body))

    def _check_rules(self) -> None:
        host = f"[{self._client.host}]" if ":" in self._client.host else self._client.host
        if self._rules is not None:
            self._rules.check(target_of(b"CONNECT", f"{host}:{self._client.port}".encode()))

    async def _body(
        self, peer: Peer, request: h11.Request, holding: Holding
    ) -> bytes | AsyncIterable[bytes]:
        """All of it if it is small, else what has come so far and then the rest, as it comes."""
        if request.method != b"POST":
            await peer.no_body()
            return b""
        held, parts = b"", peer.upload(request)
        async for data in parts:
            holding.add(len(data))
            held += data
            if len(held) > _HELD:
                return _followed(held, parts)
        return held

    async def _forward(
        self,
        peer: Peer,
        request: h11.Request,
        target: bytes,
        body: bytes | AsyncIterable[bytes],
    ) -> None:
        headers = [pair for pair in request.headers if _CARRIED.fullmatch(pair[0])]
        if not isinstance(body, bytes):
            headers += [pair for pair in request.headers if pair[0] == b"content-length"]
        method = request.method.decode()
        with answering(peer, f"the MCP server {self._name} did not answer"):
            async with self._client.send(method, target, headers, body) as answer:
                await self._note(answer.response.status_code)
                passed = answer.headers(*_DROPPED) + self._location(answer)
                is_stream = method == "GET" and _is_stream(answer.response)
                filters = [EndpointEvent(self._addresses.local)] if is_stream else []
                if filters:  # what is rewritten may get longer
                    passed = [pair for pair in passed if pair[0] != b"content-length"]
                await answer.pass_on(peer, passed, *filters)
            await peer.send(h11.EndOfMessage())
            await peer.finish()

    def _location(self, answer: UpstreamAnswer) -> Headers:
        """Where a redirect leads to, as it is found inside."""
        where = answer.response.headers.get("location")
        if where is None:
            return []
        return [(b"location", self._addresses.local(answer.redacted(where.encode())))]

    async def _note(self, status: int) -> None:
        """Tell the session that the server wants another credential: once, until it works again."""
        if status == _NOT_ACCEPTED:
            await self._tell(
                Refusal(
                    status,
                    "not accepted",
                    reason="credential_rejected",
                    host=self._client.host,
                    port=self._client.port,
                )
            )
        elif status < _FIRST_ERROR:
            self._has_told = False

    async def _tell(self, refusal: Refusal) -> None:
        refusal.server = self._name
        is_lasting = refusal.reason in ("credential_rejected", "credential_unavailable")
        if is_lasting and self._has_told:
            return
        self._has_told = self._has_told or is_lasting
        await self._reports.refused(refusal)

    async def _refuse(self, peer: Peer, refusal: Refusal) -> None:
        await self._tell(refusal)
        error = {"code": _SERVER_ERROR, "message": f"roost: {refusal.message}"}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
        await peer.respond(refusal.status, [(b"content-type", b"application/json")], body)


class _Addresses:
    """What of the server's host can be reached, and what it is called inside."""

    def __init__(self, server: httpx2.URL, local: LocalServer) -> None:
        self._server = server
        self._local = httpx2.URL(local.url)
        self._word = local.word
        self.root = str(server.copy_with(raw_path=b"/", fragment=None))
        self._own = _path(server.raw_path)
        self._named: dict[bytes, None] = {}  # the newest is last

    def outside(self, target: bytes) -> bytes | None:
        """What the server is asked for, if it is its own path, or one that it has named; None: neither."""
        asked = without_word(target, self._word)
        if asked is None or not asked.startswith(b"/"):
            return None
        return asked if _path(asked) == self._own or _path(asked) in self._named else None

    def local(self, address: bytes) -> bytes:
        """An address that the server names, as it is to be called inside. From now on it can be reached; if
        it is elsewhere, it stays as it is, and is reached like anything else, or not at all.
        """
        try:
            named = self._server.join(address.decode("ascii").strip())
        except (UnicodeDecodeError, httpx2.InvalidURL):
            return address
        if _origin(named) != _origin(self._server):
            return address
        self._remember(_path(named.raw_path))
        path = with_word(named.raw_path, self._word)
        if httpx2.URL(address.decode().strip()).is_relative_url:
            return path if self._word else address
        scheme, host, port = self._local.raw_scheme, self._local.raw_host, self._local.port
        return b"%s://%s:%d%s" % (scheme, host, port or 80, path)

    def _remember(self, path: bytes) -> None:
        self._named.pop(path, None)
        self._named[path] = None
        if len(self._named) > _MOST_NAMED:
            del self._named[next(iter(self._named))]


def _path(target: bytes) -> bytes:
    """Without the query, and without a slash at the end, which servers add and leave out."""
    return target.partition(b"?")[0].rstrip(b"/")


def _origin(url: httpx2.URL) -> tuple[bytes, bytes, int]:
    return url.raw_scheme, url.raw_host, url.port or (443 if url.scheme == "https" else 80)


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


async def _followed(held: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        yield held
        async for data in parts:
            yield data


class EndpointEvent:
    """Changes the address in the `endpoint` event that a stream of the older transport begins with.

    Nothing but its first event is held until it is complete, and that only up to a bound.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = b""
        self._is_past = False

    def feed(self, data: bytes) -> bytes:
        """As much of the stream as can be passed on now."""
        if self._is_past:
            return data
        self._held += data
        passed = b""
        while end := _EVENT_END.search(self._held):
            event, self._held = self._held[: end.end()], self._held[end.end() :]
            passed += self._changed(event)
            if _is_message(event):
                self._is_past = True
                return passed + self.flush()
        self._is_past = len(self._held) > _LONGEST_EVENT
        return passed + self.flush() if self._is_past else passed

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest

    def _changed(self, event: bytes) -> bytes:
        fields = _fields(event)
        address = fields.get(b"data")
        if fields.get(b"event") != b"endpoint" or not address:
            return event
        return event.replace(address, self._change(address), 1)


def _is_message(event: bytes) -> bool:
    """Whether it says anything: comments, which keep a connection open, and how long to wait before the next
    connection may come before the first event that does.
    """
    return bool({b"event", b"data"} & _fields(event).keys())


def _fields(event: bytes) -> dict[bytes, bytes]:
    return dict(_field(line) for line in _LINE_END.split(event))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
