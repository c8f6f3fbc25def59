"""The model's server, as the host reaches it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

import httpx2

from roost.egress.ask import Ask
from roost.egress.options import Bounds, Upstream
from roost.egress.secrets import Redactor
from roost.egress.wire import Headers, end_to_end

_NOT_PASSED_ON = (
    b"alt-svc",
    b"anthropic-organization-id",
    b"openai-organization",
    b"openai-project",
    b"set-cookie",
    b"strict-transport-security",
)
"""Answers' headers that are about the operator's account, or about a connection nobody inside has."""

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60)
_tls = cache(httpx2.create_ssl_context)  # once: reading all certificates takes a while


class Line:
    """A pool of connections to one upstream, shared by all sessions.

    It uses httpx2's transport without its client: a client keeps cookies, and those of one session
    would go out with the requests of the next.
    """

    def __init__(
        self, upstream: Upstream, transport: httpx2.AsyncBaseTransport, bounds: Bounds
    ) -> None:
        self.upstream = upstream
        self._transport = transport
        self._base = httpx2.URL(upstream.base_url)
        self._path = self._base.raw_path.rstrip(b"/")
        self._secret = upstream.key.get_secret_value().encode() if upstream.key else b""
        # Answers must arrive as they are: what is compressed cannot be looked at as it passes.
        self._headers = [*upstream.credentials(), (b"accept-encoding", b"identity")]
        connect, whole = bounds.connect_seconds, bounds.upstream_seconds
        self._timeout = {"connect": connect, "pool": connect, "read": whole, "write": whole}

    @property
    def host(self) -> str:
        """The upstream's name."""
        return self._base.host

    @property
    def port(self) -> int:
        """The upstream's port."""
        return self._base.port or (443 if self._base.scheme == "https" else 80)

    def redactor(self) -> Redactor:
        """Something that takes the key out of an answer."""
        return Redactor(self._secret)

    @asynccontextmanager
    async def send(self, ask: Ask) -> AsyncGenerator[httpx2.Response, None]:
        """The answer's head, and its body to be read. :raises httpx2.TransportError: there is none"""
        request = httpx2.Request(
            ask.method,
            self._base.copy_with(raw_path=self._path + ask.target),
            headers=[*ask.headers, *self._headers],
            content=ask.body or None,
            extensions={"timeout": self._timeout},
        )
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    def headers(self, response: httpx2.Response) -> Headers:
        """The answer's headers as they are passed on: without the key, cookies and account names."""
        redactor = self.redactor()
        drop: tuple[bytes, ...] = _NOT_PASSED_ON
        if "content-encoding" in response.headers:  # it is passed on decoded
            drop = (*drop, b"content-encoding", b"content-length")
        return [
            (name, redactor.whole(value)) for name, value in end_to_end(response.headers.raw, *drop)
        ]


@asynccontextmanager
async def connected(upstream: Upstream, bounds: Bounds) -> AsyncGenerator[Line, None]:
    """A line to the upstream for as long as the context lasts; connections are made when needed."""
    async with transport(upstream.proxy) as carrier:
        yield Line(upstream, carrier, bounds)


def transport(proxy: str | None = None) -> httpx2.AsyncHTTPTransport:
    """What carries requests to the far side."""
    # On the level of debugging it writes out the headers of answers, and whole answers that are not
    # HTTP: both may repeat our key.
    logging.getLogger("httpcore2").setLevel(logging.INFO)
    return httpx2.AsyncHTTPTransport(verify=_tls(), limits=_LIMITS, proxy=proxy)
