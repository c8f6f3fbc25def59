"""Budgets: the operator's for every session, and a session's own in the API's terms.

What was spent is in the session's state, counted by the egress request by request. A crash can lose
the count of requests that were under way, but not what the agent's own account in the log says they
used: of the two, the larger one holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from roost.domain.budget import NO_LIMIT, Budget, Prices, Spent, dollars, price_of
from roost.domain.events import Draft
from roost.domain.session import Session
from roost.errors import BudgetCreateOnly, BudgetNotRaised, BudgetReached, BudgetRefused

BUDGET_REACHED: Final[dict[str, Any]] = {"type": "budget_reached"}
"""The stop reason of a turn that had nothing left to spend."""

_LET_THROUGH = {
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
}


class Budgets:
    """`default` holds for every session; `prices` are list prices by model, and `listed` those that no server
    of the operator's has of its own.

    A session with an LLM vault spends somebody else's money: the operator's limit in dollars does not hold for
    it, and the operator's own prices are not its. Limits in requests and tokens, and its own budget, do hold.
    """

    def __init__(
        self,
        default: Budget | None = None,
        prices: Prices | None = None,
        listed: Prices | None = None,
    ) -> None:
        self._prices = prices or {}
        self._listed = self._prices if listed is None else listed
        self._default = default or Budget()

    def prices_for(self, model_vault: str | None) -> Prices:
        """The prices that a session's requests are counted by."""
        return self._prices if model_vault is None else self._listed

    def new(
        self, given: dict[str, Any] | None, model: str, model_vault: str | None
    ) -> dict[str, Any] | None:
        """The budget of a new session. :raises BudgetRefused: its model has no list price"""
        if given is not None:
            self._check_price(model, model_vault)
        return given

    def changed(self, session: Session, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """A session's budget after an update.

        :raises BudgetCreateOnly: it has none :raises BudgetNotRaised: so much is spent already
        :raises BudgetRefused: its model has no list price
        """
        before = session.spec.budget
        given: dict[str, Any] | None = params.get("budget", before)
        if given is None or given == before:
            return given
        if before is None:
            raise BudgetCreateOnly()
        self._check_price(session.spec.agent["model"]["id"], session.spec.model_vault)
        if dollars(given["max_list_cost"]) <= self.spent(session).cost:
            raise BudgetNotRaised()
        return given

    def of(self, session: Session) -> Budget:
        """What a session may spend: the least that anybody allows."""
        default = self._default
        if session.spec.model_vault is not None:
            default = replace(default, max_cost=None)
        if session.spec.budget is None:
            return default
        own = dollars(session.spec.budget["max_list_cost"])
        most = default.max_cost
        return replace(default, max_cost=own if most is None else min(own, most))

    def spent(self, session: Session) -> Spent:
        """What a session has spent: the larger one of the two counts."""
        prices = self.prices_for(session.spec.model_vault)
        price = price_of(prices, session.spec.agent["model"]["id"])
        told = Spent.on(session.state.usage, price, requests=0)
        return session.state.spent.at_least(told)

    def reached(self, session: Session) -> str | None:
        """The limit that a session has used up, in words."""
        budget = self.of(session)
        return None if budget == NO_LIMIT else budget.reached(self.spent(session))

    def raised(self, before: dict[str, Any] | None, session: Session) -> bool:
        """Whether all was spent of the budget that it had before, and is not of the one it has."""
        spec = replace(session.spec, budget=before)
        was = self.reached(replace(session, spec=spec))
        return was is not None and self.reached(session) is None

    def admit(self, session: Session, drafts: Sequence[Draft]) -> None:
        """Refuse inputs that could only fail. :raises BudgetReached:"""
        limit = self.reached(session)
        if limit and not all(draft.type in _LET_THROUGH for draft in drafts):
            raise BudgetReached(f"the session's budget of {limit} is used up")

    def _check_price(self, model: str, model_vault: str | None) -> None:
        if price_of(self.prices_for(model_vault), model) is None:
            raise BudgetRefused(f"budget: {model!r} has no list price here (model_not_budgetable)")
