"""Requests of the server's own to addresses that clients gave: to renew a token, to tell a webhook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has answered. `shown` is the beginning of the body for people, without the secrets that
    were sent; `is_cut`: there was more of it.
    """

    status: int
    content_type: str
    body: bytes
    shown: str
    is_cut: bool

    def __repr__(self) -> str:
        return f"HttpAnswer({self.status})"


class NoAnswer(msgspec.Struct, frozen=True):
    """There is none, and why, in words without an address or a secret. `refused`: this server's own rules forbid
    to ask for one there.
    """

    why: str
    refused: bool = False


class Outbound(Protocol):
    """Sends single requests, only to addresses and ports that its rules allow: those that hold for sandboxes, or
    those for webhooks.
    """

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, secrets: Sequence[str]
    ) -> HttpAnswer | NoAnswer:
        """Send it, and read the answer: its first MiB, within seconds; of a stream of events only the head.
        Redirects are not followed.

        `secrets` are those that are in the request: an answer that repeats them is shown without.
        """
        ...
