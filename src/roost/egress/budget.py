"""What a session may still spend on its model."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from roost.domain.budget import Budget, Price, Prices, Spent, price_of
from roost.domain.usage import Usage
from roost.egress.refusal import Refusal

_RETRY_SECONDS = 2


class Hold(msgspec.Struct, eq=False):
    """The place of one request that is under way, and the most it is expected to use."""

    model: str
    most: Usage


class Meter:
    """Counts a session's spending, and says when it is enough. The `budget` may be raised.

    What a request uses is known when it is over, so requests under way hold the most they may use:
    a session cannot spend its last token a hundred times at once. A request alone is let through as
    long as anything is left, so that a budget can be used up.
    """

    def __init__(self, budget: Budget, spent: Spent, prices: Prices) -> None:
        self.spent = spent
        self.budget = budget
        self._prices = prices
        self._holds: list[Hold] = []

    def admit(self, model: str, most: Usage) -> Hold:
        """A place for a request. :raises Refusal: the budget is used up, or held by others"""
        if self.budget.max_cost is not None and model and self._price(model) is None:
            raise _reached(f"the budget is in money, and {model!r} has no list price")
        if (limit := self._over(self.spent, len(self._holds))) is not None:
            raise _reached(f"the session's budget of {limit} is used up")
        held = self.spent
        for other in self._holds:
            held = held.plus(Spent.on(other.most, self._price(other.model)))
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
        self.spent = self.spent.plus(Spent.on(used, self._price(hold.model)))

    def _over(self, spent: Spent, under_way: int) -> str | None:
        return self.budget.reached(replace(spent, requests=spent.requests + under_way))

    def _price(self, model: str) -> Price | None:
        return price_of(self._prices, model)


def _reached(message: str) -> Refusal:
    return Refusal(402, message, reason="budget_reached")
