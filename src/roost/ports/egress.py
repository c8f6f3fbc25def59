"""The few connections a sandbox may make, and what they cost.

A sandbox has no network. What it may reach, it reaches through unix sockets of the host: one that
leads to the model and to nothing else, and, if its environment has networking, one that is an HTTP
proxy with rules. Secrets are put on behind those sockets: inside there are only placeholders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Literal, Protocol

import msgspec

from roost.domain.usage import Usage
from roost.ports.sandbox import Mount


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """A model's list price in US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """What that usage costs, in US dollars."""
        total = (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_input_tokens * self.cache_read
            + usage.cache_creation_input_tokens * self.cache_write
        )
        return total / 1_000_000


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a session may spend over its whole life; None: no limit.

    Tokens are those read and written, without what came from the prompt cache: that would grow with
    the number of requests, which has a limit of its own. `max_cost` is in US dollars.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a session has spent so far: the sum of its `Account`s, kept by whoever opens the grant."""

    requests: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, usage: Usage, price: Price | None) -> Spent:
        """One more request; without a price it costs nothing."""
        fresh = usage.input_tokens + usage.cache_creation_input_tokens + usage.output_tokens
        return Spent(
            requests=self.requests + 1,
            tokens=self.tokens + fresh,
            cost=self.cost + (price.cost(usage) if price is not None else 0),
        )


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One request that went to the model.

    `status` is what the model's server answered; 502 if it did not, 499 if the agent hung up first.
    Without `complete` the answer was cut, and `usage` is an estimate from what was seen of it.
    """

    session_id: str
    model: str
    usage: Usage
    status: int
    seconds: float
    complete: bool = True


Reason = Literal[
    "host_not_allowed",
    "port_not_allowed",
    "address_not_allowed",
    "path_not_allowed",
    "model_not_allowed",
    "budget_reached",
]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Something inside asked for what it may not have.

    A sandbox can ask faster than a log should grow: `unreported` counts the refusals since the last
    report that were left out for that reason.
    """

    session_id: str
    host: str
    port: int
    reason: Reason
    unreported: int = 0


class Networking(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sandbox may connect to, apart from the model.

    `allowed_hosts` are names (`example.com`) or suffixes (`*.example.com`), and count only under
    `limited`. `package_managers` adds the hosts the operator named for them. Under every kind the
    operator's ports hold, and addresses that are not public stay out of reach.
    """

    kind: Literal["none", "limited", "unrestricted"] = "none"
    allowed_hosts: Sequence[str] = ()
    package_managers: bool = False


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one session may reach while one runner has it.

    `api` names an upstream the operator configured. `models` are ids, or beginnings of ids that end
    in `*`; None: any. `spent` is what earlier grants of the session have used of the budget.
    `account` and `refused` are awaited one at a time for each connection, are given a few seconds,
    and may fail: that is logged, and the connection goes on.
    """

    session_id: str
    generation: int
    account: Callable[[Account], Awaitable[None]]
    refused: Callable[[Refused], Awaitable[None]]
    api: str = "anthropic"
    models: Sequence[str] | None = None
    budget: Budget = Budget()
    spent: Spent = Spent()
    prices: Mapping[str, Price] = {}
    networking: Networking = Networking()


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox must be given so that it can use its grant. It holds no secret.

    `mounts` are the sockets, `environ` tells programs about them. Programs that speak TCP only need
    `forwards`: ports on the sandbox's own loopback, each with the socket (its path inside) that
    `roost/guest/forward.py` is to connect it to.
    """

    mounts: Sequence[Mount]
    environ: Mapping[str, str]
    forwards: Mapping[int, str] = {}


class Egress(Protocol):
    """The way out."""

    def open(self, grant: Grant) -> AbstractAsyncContextManager[Endpoints]:
        """Serve a grant until the context ends. Called by the runner before it opens the sandbox.

        Every connection through it is cut, every request accounted for and every socket gone when
        the context has ended. A grant of an older generation of the same session is ended first.

        :raises LeaseLost: a grant of this generation or a newer one is open
        :raises Unavailable: no upstream has the name in `api`, or the sockets cannot be made
        """
        ...
