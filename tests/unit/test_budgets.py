"""Who may spend what, without a server."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from roost.config import Settings
from roost.core.sandbox.budgets import Budgets
from roost.domain.budget import Budget, Price, Spent, monetary, price_of
from roost.domain.session import Session, Spec, State
from roost.domain.upstream import Upstreams
from roost.domain.usage import Usage
from roost.errors import BudgetNotRaised, BudgetReached, BudgetRefused, StartupError
from roost.ports.drafts import new_draft
from roost.serve.prices import priced

PRICES = {
    "m": Price(input=Decimal(5), output=Decimal(25), cache_read=Decimal(0), cache_write=Decimal(6))
}


def limit(cents: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(cents), "currency": "USD"}}


def session(budget: dict[str, Any] | None, **state: Any) -> Session:
    return Session(
        id="sesn_1",
        tenant="t",
        spec=Spec(agent={"model": {"id": "m-20260101"}}, environment_id="env_1", budget=budget),
        state=State(thread_id="sthr_1", agent_name="a", **state),
        created_at=0,
        updated_at=0,
    )


def test_the_least_that_anybody_allows_holds():
    budgets = Budgets(Budget(max_requests=9, max_cost=Decimal(2)), PRICES)
    assert budgets.of(session(None)) == Budget(max_requests=9, max_cost=Decimal(2))
    assert budgets.of(session(limit(150))).max_cost == Decimal("1.5")
    assert budgets.of(session(limit(900))).max_cost == Decimal(2)


def test_who_brings_an_account_is_not_held_to_the_operators_dollars():
    own_prices = {"m": replace(PRICES["m"], input=Decimal(50))}
    budgets = Budgets(Budget(max_requests=9, max_cost=Decimal(2)), own_prices, PRICES)

    def with_vault(budget: dict[str, Any] | None, **state: Any) -> Session:
        made = session(budget, **state)
        return replace(made, spec=replace(made.spec, model_vault="vlt_1"))

    assert budgets.of(with_vault(None)) == Budget(max_requests=9)
    assert budgets.of(with_vault(limit(900))).max_cost == Decimal(9)
    usage = Usage(input_tokens=1_000_000)
    assert budgets.spent(with_vault(None, usage=usage)).cost == Decimal(5)
    assert budgets.spent(session(None, usage=usage)).cost == Decimal(50)
    assert budgets.reached(with_vault(None, usage=usage)) is None
    assert budgets.reached(session(None, usage=usage)) is not None


def test_a_new_session_has_the_budget_it_was_given_if_its_model_has_a_price():
    budgets = Budgets(None, PRICES)
    assert budgets.new(limit(150), "m-20260101", None) == limit(150)
    assert budgets.new(None, "another", None) is None
    with pytest.raises(BudgetRefused):
        budgets.new(limit(150), "another", None)


def test_of_two_counts_the_larger_one_holds():
    """The way out misses what a crash cut off; the log misses what the agent did not ask for."""
    spent = Spent(requests=3, tokens=10, cost=Decimal(1))
    told = session(limit(100), spent=spent, usage=Usage(1_000_000, 0))
    found = Budgets(None, PRICES).spent(told)
    assert found == Spent(requests=3, tokens=1_000_000, cost=Decimal(5))
    assert Budgets(None, PRICES).reached(told) == "1 US dollars"


def test_with_nothing_left_only_what_settles_things_is_taken():
    budgets = Budgets(Budget(max_tokens=10))
    full = session(None, spent=Spent(tokens=10))
    for type in ("user.interrupt", "user.tool_confirmation", "user.custom_tool_result"):
        budgets.admit(full, [new_draft(type)])
    with pytest.raises(BudgetReached, match="10 tokens"):
        budgets.admit(full, [new_draft("user.interrupt"), new_draft("user.message")])
    budgets.admit(session(None, spent=Spent(tokens=9)), [new_draft("user.message")])


def test_a_budget_can_be_raised_or_removed_and_not_lowered_below_what_is_spent():
    budgets = Budgets(None, PRICES)
    capped = session(limit(100), spent=Spent(cost=Decimal(1)))
    assert budgets.changed(capped, {}) == limit(100)
    assert budgets.changed(capped, {"budget": None}) is None
    assert budgets.changed(capped, {"budget": limit(101)}) == limit(101)
    with pytest.raises(BudgetNotRaised):
        budgets.changed(capped, {"budget": limit(99)})
    with pytest.raises(BudgetRefused):
        Budgets().changed(capped, {"budget": limit(101)})


def test_prices_are_by_model_and_costs_are_whole_cents_rounded_up():
    assert price_of(PRICES, "m-20260101") is price_of(PRICES, "m") is not None
    assert price_of(PRICES, "m-large") is None
    assert monetary(Decimal("0.0101")) == {"amount": "2", "currency": "USD"}
    assert monetary(Decimal("1234.5")) == {"amount": "123450", "currency": "USD"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"m": {}}',
        '{"m": {"input": -1, "output": 1, "cache_read": 1, "cache_write": 1}}',
    ],
)
def test_a_price_list_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str):
    path = tmp_path / "prices.json"
    path.write_text(text)
    for wrong in (path, tmp_path / "absent.json"):
        with pytest.raises(StartupError, match="ROOST_PRICES"):
            priced(Settings.model_validate({"prices": wrong}), Upstreams([]))


def test_a_limit_in_dollars_needs_prices(tmp_path: Path):
    with pytest.raises(StartupError, match="needs list prices"):
        priced(Settings.model_validate({"budget_dollars": 1}), Upstreams([]))
    path = tmp_path / "prices.json"
    path.write_text('{"m": {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": "6.25"}}')
    budgets = priced(
        Settings.model_validate({"budget_dollars": "1.5", "prices": path}), Upstreams([])
    )
    assert budgets.prices_for(None)["m"].cache_write == Decimal("6.25")
    assert budgets.of(session(None)).max_cost == Decimal("1.5")
    assert replace(budgets.of(session(None)), max_cost=None) == Budget()
