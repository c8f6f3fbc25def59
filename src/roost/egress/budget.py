"""What a session may still spend on its model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from roost.domain.usage import Usage
from roost.egress.refusal import Refusal
from roost.ports.egress import Budget, Price, Spent

_DATE = re.compile(r"-[0-9]{8}$")
_RETRY_SECONDS = 2


class Hold(msgspec.Struct, eq=False):
    """The place of one request that is under way, and the most it is expected to use."""

    model: str
    most: Usage


class Meter:
    """Counts a session's spending, and says when it is enough.

    What a request uses is known when it is over, so requests under way hold the most they may use:
    a session cannot spend its last token a hundred times at once. A request alone is let through as
    long as anything is left, so that a budget can be used up.
    """

    def __init__(self, budget: Budget, spent: Spent, prices: Mapping[str, Price]) -> None:
        self.spent = spent
        self._budget = budget
        self._prices = prices
        self._holds: list[Hold] = []

    def admit(self, model: str, most: Usage) -> Hold:
        """A place for a request. :raises Refusal: the budget is used up, or held by others"""
        if self._budget.max_cost is not None and model and self._price(model) is None:
            raise _reached(f"the budget is in money, and {model!r} has no list price")
        if (limit := self._over(self.spent, len(self._holds))) is not None:
            raise _reached(f"the session's budget of {limit} is used up")
        held = self.spent
        for other in self._holds:
            held = held.plus(other.most, self._price(other.model))
        if self._holds and self._over(held, 0) is not None:
            raise Refusal(
                429,
                "requests under way hold the rest of the session's budget",
                retry_after=_RETRY_SECONDS,
            )
        hold = Hold(model, most)
        self._holds.append(hold)
        return hold

    def settle(self, hold: Hold, used: Usage) -> None:
        """A request is over."""
        self._holds.remove(hold)
        self.spent = self.spent.plus(used, self._price(hold.model))

    def _over(self, spent: Spent, under_way: int) -> str | None:
        budget = self._budget
        if _used_up(spent.requests + under_way, budget.max_requests):
            return f"{budget.max_requests} requests"
        if _used_up(spent.tokens, budget.max_tokens):
            return f"{budget.max_tokens} tokens"
        if _used_up(spent.cost, budget.max_cost):
            return f"{budget.max_cost} US dollars"
        return None

    def _price(self, model: str) -> Price | None:
        # `name-20260101` is one date's edition of `name`, at its price.
        return self._prices.get(model) or self._prices.get(_DATE.sub("", model))


def _used_up(spent: int | Decimal, limit: int | Decimal | None) -> bool:
    return limit is not None and spent >= limit


def _reached(message: str) -> Refusal:
    return Refusal(402, message, reason="budget_reached")
