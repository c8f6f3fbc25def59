"""What a session may spend on its model, what it has spent, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

import msgspec

from roost.domain.usage import Usage

_DATE = re.compile(r"-[0-9]{8}$")
_CENTS = 100


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


Prices = Mapping[str, Price]


def price_of(prices: Prices, model: str) -> Price | None:
    """The price of a model; `name-20260101` is one date's edition of `name`, at its price."""
    return prices.get(model) or prices.get(_DATE.sub("", model))


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session has spent so far. `cost` is in US dollars."""

    requests: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)

    @classmethod
    def on(cls, usage: Usage, price: Price | None, *, requests: int = 1) -> Spent:
        """What requests with that usage come to; without a price they cost nothing."""
        fresh = usage.input_tokens + usage.cache_creation_input_tokens + usage.output_tokens
        cost = price.cost(usage) if price is not None else Decimal(0)
        return cls(requests=requests, tokens=fresh, cost=cost)

    def plus(self, other: Spent) -> Spent:
        """The sum of both, field by field."""
        return Spent(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
        )

    def at_least(self, other: Spent) -> Spent:
        """Of each, what is more: two counts of the same thing, either of which may have gaps."""
        return Spent(
            requests=max(self.requests, other.requests),
            tokens=max(self.tokens, other.tokens),
            cost=max(self.cost, other.cost),
        )


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a session may spend over its whole life; None: no limit.

    Tokens are those read and written, without what came from the prompt cache: that would grow with
    the number of requests, which has a limit of its own. `max_cost` is in US dollars.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None

    def reached(self, spent: Spent) -> str | None:
        """The limit that is used up, in words; None as long as anything is left."""
        if _used_up(spent.requests, self.max_requests):
            return f"{self.max_requests} requests"
        if _used_up(spent.tokens, self.max_tokens):
            return f"{self.max_tokens} tokens"
        if _used_up(spent.cost, self.max_cost):
            return f"{self.max_cost} US dollars"
        return None


NO_LIMIT: Final = Budget()


def dollars(amount: Mapping[str, Any]) -> Decimal:
    """The API's `{"amount": "2500", "currency": "USD"}`: 25 dollars."""
    return Decimal(amount["amount"]) / _CENTS


def monetary(cost: Decimal) -> dict[str, str]:
    """Dollars as the API has them: whole cents, rounded up."""
    cents = (cost * _CENTS).to_integral_value(ROUND_CEILING)
    return {"amount": str(int(cents)), "currency": "USD"}


def _used_up(spent: int | Decimal, limit: int | Decimal | None) -> bool:
    return limit is not None and spent >= limit
