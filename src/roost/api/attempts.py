"""How often somebody who has no key may try one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import anyio

from roost.errors import RateLimited

_WRONG_PER_MINUTE: Final = 10
_MOST_ADDRESSES: Final = 10_000


class Attempts:
    """Counts wrong keys at the login, by the address they come from.

    In memory, and for this server alone: a key is too long to be guessed, so all that this does is to
    keep a program that tries for ever from costing much.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """:raises RateLimited: too many were wrong; says when another may be tried"""
        over = self._lately(address) - (_WRONG_PER_MINUTE - 1)
        if over > 0:
            raise RateLimited(
                "Too many wrong keys came from this address.",
                retry_after=over * 60 / _WRONG_PER_MINUTE,
                hint="Wait a moment, and check that it is the whole key.",
            )

    def failed(self, address: str) -> None:
        """One more was wrong."""
        lately = self._lately(address) + 1
        self._wrong.pop(address, None)
        self._wrong[address] = lately, anyio.current_time()
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)

    def _lately(self, address: str) -> float:
        """How many were wrong; they are forgotten one after the other."""
        count, at = self._wrong.get(address, (0.0, 0.0))
        return max(0.0, count - (anyio.current_time() - at) * _WRONG_PER_MINUTE / 60)
