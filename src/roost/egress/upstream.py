"""The model's server, as the host reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import httpx2

from roost.egress.ask import Ask
from roost.egress.client import Client
from roost.egress.options import Upstream
from roost.egress.secrets import Redactor, forms_of
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

_SHORTEST_PASSWORD = 6


class Line:
    """What one session asks of one upstream, with its key. :raises httpx2.InvalidURL: of a malformed address"""

    def __init__(self, upstream: Upstream, client: Client) -> None:
        self.upstream = upstream
        self._base = httpx2.URL(upstream.base_url)
        self._client = client
        self._path = self._base.raw_path.rstrip(b"/")
        self._secrets = _secrets_of(upstream)
        # Answers must arrive as they are: what is compressed cannot be looked at as it passes.
        self._headers = [*upstream.credentials(), (b"accept-encoding", b"identity")]

    @property
    def host(self) -> str:
        """The upstream's name, in ASCII: what cannot be written otherwise is no reason to fail."""
        return self._base.raw_host.decode()

    @property
    def port(self) -> int:
        """The upstream's port."""
        return self._base.port or (443 if self._base.scheme == "https" else 80)

    def redactor(self) -> Redactor:
        """Something that takes the key out of an answer, in all forms in which it may be quoted."""
        return Redactor(self._secrets)

    def send(self, ask: Ask) -> AbstractAsyncContextManager[httpx2.Response]:
        """The answer's head, and its body to be read. :raises httpx2.TransportError: there is none"""
        headers = [*ask.headers, *self._headers]
        return self._client.send(self._base, ask.method, self._path + ask.target, headers, ask.body)

    def headers(self, response: httpx2.Response) -> Headers:
        """The answer's headers as they are passed on: without the key, cookies and account names."""
        redactor = self.redactor()
        drop: tuple[bytes, ...] = _NOT_PASSED_ON
        if "content-encoding" in response.headers:  # it is passed on decoded
            drop = (*drop, b"content-encoding", b"content-length")
        return [
            (name, redactor.whole(value)) for name, value in end_to_end(response.headers.raw, *drop)
        ]


def _secrets_of(upstream: Upstream) -> Sequence[bytes]:
    secret = upstream.key.get_secret_value().encode() if upstream.key else b""
    # A password may be short. The stand-ins for keys that some models' servers take are not passwords.
    shortest = {"shortest": _SHORTEST_PASSWORD} if upstream.scheme == "basic" else {}
    return forms_of(secret, upstream.credentials(), **shortest)
