"""Limits how often somebody who has no key may try one at the login."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

import anyio

from roost.core.access.keys import digest_of
from roost.errors import RateLimited

_WRONG_PER_MINUTE: Final = 10
_WRONG_PER_ADDRESS: Final = 600  # in a minute
_MOST_ADDRESSES: Final = 10_000
_PREFIX: Final = 2  # bytes of a key's digest
_SITE: Final = 8  # bytes of an IPv6 address that are one customer's


def group_of(host: str) -> str:
    """What is counted as one address: an IPv6 customer has 2^64 of them. Empty: it is not an address."""
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return address.packed[:_SITE].hex()
    return str(address)


class LoginAttempts:
    """Counts wrong keys at the login, by the address they come from and by what was tried.

    Who tries one key again and again has to wait soon; others at the same address, behind a proxy that is
    not named in the settings, do not. They have to once an address brings wrong keys by the hundred.

    In memory, and for this server alone: a key is too long to be guessed, so all that this does is to
    keep a program that tries for ever from costing much.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str, secret: str) -> None:
        """Refuse another attempt from an address that was wrong too often.

        :raises RateLimited: too many were wrong; says when another may be tried
        """
        for name, most in _names(address, secret):
            over = self._lately(name, most) - (most - 1)
            if over > 0:
                raise RateLimited(
                    "Too many wrong keys came from this address.",
                    retry_after=over * 60 / most,
                    hint="Wait a moment, and check that it is the whole key.",
                )

    def failed(self, address: str, secret: str) -> None:
        """Note that a key was wrong."""
        for name, most in _names(address, secret):
            lately = self._lately(name, most) + 1
            self._wrong.pop(name, None)
            self._wrong[name] = lately, anyio.current_time()
            if len(self._wrong) > 2 * _MOST_ADDRESSES:
                self._wrong.popitem(last=False)

    def _lately(self, name: str, most: int) -> float:
        """How many were wrong lately; they are forgotten one after the other."""
        count, at = self._wrong.get(name, (0.0, 0.0))
        return max(0.0, count - (anyio.current_time() - at) * most / 60)


def _names(address: str, secret: str) -> tuple[tuple[str, int], tuple[str, int]]:
    group = group_of(address)
    tried = digest_of(secret)[:_PREFIX].hex()
    return (f"{group} {tried}", _WRONG_PER_MINUTE), (group, _WRONG_PER_ADDRESS)
