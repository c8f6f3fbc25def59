"""What sessions may spend, as the operator says: limits, and the prices to count by."""

from __future__ import annotations

from pathlib import Path

import msgspec

from roost.config import Settings
from roost.core.sandbox.budgets import Budgets
from roost.domain.budget import Budget, Price, Prices
from roost.domain.upstream import Upstreams
from roost.errors import StartupError


def priced(settings: Settings, upstreams: Upstreams) -> Budgets:
    """The budgets of this server. :raises StartupError: a price list that cannot be used, or none"""
    listed = {} if settings.prices is None else _read(settings.prices)
    prices = upstreams.prices(listed)
    if settings.budget_dollars and not prices:
        raise StartupError(
            "ROOST_BUDGET_DOLLARS needs list prices", hint="Set ROOST_PRICES; see docs/egress.md."
        )
    limits = Budget(
        max_requests=settings.budget_requests or None,
        max_tokens=settings.budget_tokens or None,
        max_cost=settings.budget_dollars or None,
    )
    return Budgets(limits, prices, listed)


def price_problem(prices: Prices) -> str | None:
    """What is wrong with a price list, in words; None: nothing."""
    for model, price in prices.items():
        if any(not part.is_finite() or part < 0 for part in msgspec.structs.astuple(price)):
            return f"{model}: a price is 0 or more"
    return None


def _read(path: Path) -> Prices:
    hint = "docs/egress.md shows a price list."
    try:
        prices = msgspec.json.decode(path.read_bytes(), type=dict[str, Price])
    except OSError as error:
        raise StartupError(f"ROOST_PRICES: {path}: {error.strerror}", hint=hint) from None
    except msgspec.MsgspecError as error:
        raise StartupError(f"ROOST_PRICES: {path}: {error}", hint=hint) from None
    if problem := price_problem(prices):
        raise StartupError(f"ROOST_PRICES: {path}: {problem}", hint=hint)
    return prices
