"""Requests of the server's own to addresses that clients gave. The adapter of `ports/outbound`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import httpx2
from msgspec.structs import replace

from roost.egress.connections import UpstreamConnections
from roost.egress.dial import Dialer
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal
from roost.egress.secrets import SHORTEST_SECRET, Redactor, forms_of
from roost.ports.outbound import HttpAnswer, NoAnswer

_SECONDS: Final = 10.0
_MOST: Final = 1024**2
_SHOWN: Final = 2048


class RestrictedHttp:
    """`ports.outbound.Outbound`: each request has a connection of its own, to one of the `ports`; with None, the
    `dialer` decides which ports it may go to.
    """

    def __init__(self, dialer: Dialer, bounds: EgressBounds, ports: frozenset[int] | None) -> None:
        self._dialer = dialer
        self._ports = ports
        self._bounds = replace(bounds, upstream_seconds=_SECONDS)

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, secrets: Sequence[str]
    ) -> HttpAnswer | NoAnswer:
        connections = UpstreamConnections(self._bounds, self._dialer, 1)
        try:
            where = httpx2.URL(url)
            port = where.port or (443 if where.scheme == "https" else 80)
            if self._ports is not None and port not in self._ports:
                return NoAnswer(f"port {port} is not allowed", refused=True)
            with anyio.fail_after(_SECONDS):
                return await _posted(connections, where, headers, body, secrets)
        except Refusal as refusal:
            return NoAnswer(refusal.message, refused=refusal.reason is not None)
        except (httpx2.TransportError, httpx2.DecodingError, httpx2.InvalidURL, ValueError):
            return NoAnswer("it cannot be reached, or does not answer as it should")
        except TimeoutError:
            return NoAnswer("it takes too long to answer")
        finally:
            await connections.close()


async def _posted(
    connections: UpstreamConnections,
    where: httpx2.URL,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
) -> HttpAnswer:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    sent.append((b"accept-encoding", b"identity"))
    read = b""
    async with connections.send(
        where, "POST", where.raw_path, sent, body, restricted=True
    ) as response:
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):  # which may never end
            async for data in response.aiter_bytes():
                read += data
                if len(read) > _MOST:
                    break
    redactor = Redactor.of(_forms(secrets, sent))
    return HttpAnswer(
        status=response.status_code,
        content_type=redactor.whole(kind.encode()).decode(),
        body=read[:_MOST],
        shown=redactor.whole(read)[:_SHOWN].decode(errors="replace"),
        is_cut=len(read) > _SHOWN,
    )


def _forms(secrets: Sequence[str], sent: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    carried = [pair for pair in sent if pair[0] == b"authorization"]
    return [
        form
        for secret in secrets
        for form in forms_of(secret.encode(), carried, shortest=SHORTEST_SECRET)
    ]
