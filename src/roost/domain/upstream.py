"""Which server of models serves which model: the operator's list, in its order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from roost.domain.budget import Price, Prices
from roost.errors import ModelNotServed

_DATE: Final = re.compile(r"-[0-9]{8}")
_ANY: Final = "*"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One server of models, by the name that the operator gave it.

    `api` is the API that it speaks. `models` are ids, which stand for their dated editions too, and
    beginnings of ids that end in `*`. `prices` are its own, for models that differ from the list. `web_search`:
    it searches the web for its models, if a request offers them that. `window`: how many tokens its models take at
    once, if that is known.
    """

    name: str
    api: str
    models: Sequence[str] = (_ANY,)
    prices: Prices = {}
    web_search: bool = False
    window: int | None = None

    def serves(self, model: str) -> bool:
        """Whether requests for this model may go to it."""
        return any(_matches(pattern, model) for pattern in self.models)


class Upstreams:
    """All servers of models that the operator named. The first that serves a model gets its requests."""

    def __init__(self, listed: Sequence[Upstream]) -> None:
        self._listed = listed

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._listed)

    def of(self, model: str, api: str | None = None) -> Upstream | None:
        """The one that serves this model, of those that speak this API; None: nobody does."""
        return next(
            (
                each
                for each in self._listed
                if (api is None or each.api == api) and each.serves(plain_id(model))
            ),
            None,
        )

    def check(self, model: str, api: str | None = None) -> None:
        """Refuse a model that nobody serves, before something is made with it. :raises ModelNotServed:"""
        if self.of(model, api) is None:
            to_whom = "" if api is None else f" by the API {api!r}"
            raise ModelNotServed(f"model: {model[:100]!r} is not served here{to_whom}")

    def prices(self, listed: Prices) -> Prices:
        """What models cost: an upstream's own price, of the one that serves the model, else the list's."""
        own: dict[str, Price] = {}
        for each in self._listed:
            for model, price in each.prices.items():
                if self.of(model, each.api) is each:
                    own.setdefault(model, price)
        return {**listed, **own}


def searches_web(api: str, url: str) -> bool:
    """Whether a server is known to search the web for its models: the one of those who made the API."""
    try:
        return api == "anthropic" and urlsplit(url).hostname == "api.anthropic.com"
    except ValueError:  # an address that whoever connects to it refuses, with a hint
        return False


def plain_id(model: str) -> str:
    """The model's own id: `[1m]` after it is for the agent's program alone."""
    return model.partition("[")[0]


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with an entry of `models`, in words; None: nothing."""
    if not pattern or any(not "!" <= letter <= "~" for letter in pattern):
        return "a model's id has no spaces, and something in it"
    return "`*` can only be at the end" if _ANY in pattern[:-1] else None


def _matches(pattern: str, model: str) -> bool:
    if pattern.endswith(_ANY):
        return model.startswith(pattern[:-1])
    rest = model.removeprefix(pattern)
    return model == pattern or (rest != model and _DATE.fullmatch(rest) is not None)
