"""Whose a container is: all leases of a session know it by one identifier, so it is looked at before it is ended.

Whatever opens a sandbox writes a token and its generation into the container. The token is made of a secret that is not
in there, so an agent cannot write that a newer lease has its container.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple

from roost.dynamic_sessions import CodePool
from roost.sandboxes.pool.link import called

HELD: Final = "held:"
"""What an execution's answer begins with that says who has the container."""

_FREE: Final = "free"
_LOOK: Final = '''\
def _roost_look(_given):
    import os, tempfile
    try:
        with open(os.path.join(tempfile.gettempdir(), "roost-commands.json"), errors="replace") as file:
            return "held:" + file.read(1000)
    except OSError:
        return "free"


_roost_look("'''


class Claim(NamedTuple):
    """Who has a container."""

    token: str
    generation: int


class ContainerClaims:
    """The claims to one identifier's container."""

    def __init__(self, secret: bytes, identifier: str) -> None:
        self._secret = secret
        self._identifier = identifier

    def make(self, generation: int) -> Claim:
        """One more; no two are the same."""
        chance = secrets.token_hex(12)
        return Claim(chance + self._seal(chance, generation), generation)

    def read(self, told: str) -> Claim | None:
        """What an answer that begins with `HELD` says; None: nobody whose word counts."""
        try:
            found = json.loads(told.removeprefix(HELD))
            claim = Claim(str(found["token"]), int(found["generation"]))
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            return None
        chance, seal = claim.token[:24], claim.token[24:]
        is_real = hmac.compare_digest(seal.encode(), self._seal(chance, claim.generation).encode())
        return claim if is_real else None

    async def holder(self, pool: CodePool) -> Claim | None:
        """Who has the container; None: nobody whose word counts. :raises PoolUnavailable: :raises PoolRefused:"""
        return self.read(await pool.text(self._identifier, called(_LOOK, {})))

    async def end(
        self, pool: CodePool, spares: Callable[[Claim], bool], *, even_free: bool = False
    ) -> bool:
        """End the container, unless it is one to spare; whether it was ended.

        One that nobody has is being taken just now, or ends by itself; it is ended if `even_free`.

        :raises PoolUnavailable: :raises PoolRefused:
        """
        told = await pool.text(self._identifier, called(_LOOK, {}))
        if told == _FREE:
            is_ours = even_free
        else:
            claim = self.read(told)
            is_ours = claim is None or not spares(claim)
        if is_ours:
            await pool.end(self._identifier)
        return is_ours

    def _seal(self, chance: str, generation: int) -> str:
        text = f"claim\0{self._identifier}\0{chance}\0{generation}"
        return hmac.new(self._secret, text.encode(), sha256).hexdigest()[:24]
