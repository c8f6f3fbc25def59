"""The proxy to the model: one session's requests to it, one after another on each connection.

Each ring adds one thing: `serve` keeps the connection, `_answer` checks, `_paid` counts,
`unless_gone` stops paying for what nobody waits for, `_forward` passes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import anyio
import h11
import httpx2
import msgspec
from anyio.abc import ByteStream
from msgspec.structs import replace

from roost.domain.usage import Usage
from roost.egress.dialects import DIALECTS, ModelRequest, ModelRules
from roost.egress.direct import DirectAnswer, DirectPeer
from roost.egress.metering import BudgetHold, Meter, Scan, scan_of
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal, Reports
from roost.egress.routes import ModelRoute, ModelRoutes
from roost.egress.upstream import answering
from roost.egress.wire import Headers, HeldBytes, Peer
from roost.ports.egress import Account, Grant

Asker = Peer | DirectPeer
Work = Callable[[], Awaitable[None]]
_HUNG_UP = 499
_FIRST_ERROR = 400
_FASTEST = 100
"""Tokens a model writes in a second, at most: what an answer that nobody saw is charged by."""

_ERROR_TYPES = {
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
}


class Exchange:
    """What is known so far of one request and its answer."""

    def __init__(self) -> None:
        self.status = _HUNG_UP
        self.ended = False
        self.failed = False
        self._scan: Scan | None = None
        self._began = anyio.current_time()

    @property
    def seconds(self) -> float:
        """How long the exchange has taken so far."""
        return anyio.current_time() - self._began

    def answered(self, response: httpx2.Response) -> Scan:
        """The answer has begun: gives what has to see its body as it passes."""
        self.status = response.status_code
        self._scan = scan_of(response.headers.get("content-type", "").encode())
        return self._scan

    def usage(self, most: Usage) -> Usage:
        """What it used; where the answer has not said so, what was seen of it or it may have used."""
        if self._scan is None:
            return Usage() if self.failed else self._guess(most)
        self._scan.finish()
        used = self._scan.usage
        if self._scan.complete or self.status >= _FIRST_ERROR:
            return used
        guess = self._guess(most)
        return replace(
            used,
            input_tokens=used.input_tokens or guess.input_tokens,
            output_tokens=used.output_tokens or guess.output_tokens,
        )

    def _guess(self, most: Usage) -> Usage:
        """In the session's disfavour: else hanging up in time would make every request free."""
        written = min(most.output_tokens, 1 + int(self.seconds * _FASTEST))
        return Usage(input_tokens=most.input_tokens, output_tokens=written)


class ModelProxy:
    """Serves the connections that arrive at one session's model socket."""

    def __init__(
        self,
        grant: Grant,
        routes: ModelRoutes,
        reports: Reports,
        bounds: EgressBounds,
        held: HeldBytes,
    ) -> None:
        self._session_id = grant.session_id
        self._rules = ModelRules(DIALECTS[grant.api], grant.models)
        self._meter = Meter(grant.budget, grant.spent, grant.prices)
        self._routes = routes
        self._reports = reports
        self._bounds = bounds
        self._held = held

    async def serve(self, stream: ByteStream) -> None:
        """Answer the requests on a connection until it ends."""
        await Peer(stream, self._bounds).serve(self._asked, self._refuse)

    async def ask(
        self,
        begin: Callable[[Work], Awaitable[bool]],
        method: str,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> DirectAnswer:
        """`ports.egress.AskModel`. What begins is to go on beside the connections; if it cannot, all is over."""
        peer = DirectPeer(body, self._bounds.send_seconds)
        work = partial(self._answer_directly, peer, method.encode(), target, headers)
        has_begun = False
        try:
            if not (has_begun := await begin(work)):
                raise ConnectionRefusedError("the session's egress is closed")
            await peer.answer.begun()
        except BaseException:
            peer.answer.give_up()
            if not has_begun:
                peer.close()
            raise
        return peer.answer

    async def _answer_directly(
        self,
        peer: DirectPeer,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        try:
            await self._answer(peer, method, target, headers)
        except Refusal as refusal:
            await self._refuse(peer, refusal)
        finally:
            peer.close()

    async def _asked(self, peer: Peer, request: h11.Request) -> None:
        await self._answer(peer, request.method, request.target, request.headers)

    async def _answer(
        self, peer: Asker, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        ask = self._rules.head(method, target, headers)
        with self._held.holding() as holding:
            # What arrived is let go of once it is written anew: only that is held until the answer ends.
            body = peer.held_body(holding, self._bounds.body_bytes)
            whole = self._rules.whole(ask, await body)
            await self._paid(peer, whole)

    async def _paid(self, peer: Asker, ask: ModelRequest) -> None:
        route = self._routes.of(ask.model)
        hold = await self._admitted(ask)
        exchange = Exchange()
        try:
            await peer.unless_gone(partial(self._forward, route, peer, ask, exchange))
        finally:
            used = exchange.usage(ask.most)
            self._meter.settle(hold, used)
            await self._reports.account(
                Account(
                    session_id=self._session_id,
                    model=ask.model,
                    usage=used,
                    status=exchange.status,
                    seconds=exchange.seconds,
                    complete=exchange.ended,
                    upstream=route.upstream.name,
                )
            )

    async def _admitted(self, ask: ModelRequest) -> BudgetHold:
        """Its hold on the budget. One that is used up may have been raised meanwhile. :raises Refusal:"""
        try:
            return self._meter.admit(ask.model, ask.most)
        except Refusal as refusal:
            if refusal.reason != "budget_reached":
                raise
            self._meter.budget = await self._reports.budget(self._meter.budget)
            return self._meter.admit(ask.model, ask.most)

    async def _forward(
        self, route: ModelRoute, peer: Asker, ask: ModelRequest, exchange: Exchange
    ) -> None:
        client = route.client
        where = f"{client.host}:{client.port}"
        sent = client.send(ask.method, ask.target, ask.headers, ask.body)
        try:
            with answering(peer, f"the model's server at {where} did not answer"):
                async with sent as answer:
                    look = exchange.answered(answer.response).feed
                    await answer.pass_on(peer, answer.headers(), look=look)
                exchange.ended = True
                await peer.send(h11.EndOfMessage())
        except (
            Refusal
        ) as refusal:  # of the credential or the address, or there is no answer: nothing was used
            exchange.failed, exchange.status = True, refusal.status
            refusal.host, refusal.port = client.host, client.port
            raise

    async def _refuse(self, peer: Asker, refusal: Refusal) -> None:
        if not refusal.host:
            usual = self._routes.usual.client
            refusal.host, refusal.port = usual.host, usual.port
        await self._reports.refused(refusal)
        headers: Headers = [(b"content-type", b"application/json")]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", str(refusal.retry_after).encode()))
        await peer.respond(refusal.status, headers, _envelope(refusal))


def _envelope(refusal: Refusal) -> bytes:
    """The API's error object; other APIs' clients look for the same `error.message`."""
    kind = _ERROR_TYPES.get(refusal.status, "invalid_request_error")
    error = {"type": kind, "message": f"roost: {refusal.message}", "code": refusal.reason}
    return msgspec.json.encode({"type": "error", "error": error})
