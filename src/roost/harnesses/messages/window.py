"""How many tokens a model takes at once, and what follows from that."""

from __future__ import annotations

from typing import Final

import msgspec

USUAL: Final = 200_000
"""What current models take, at least."""

_LONGEST_ANSWER: Final = 16_384


class ModelWindow(msgspec.Struct, frozen=True):
    """A model's window: `tokens` are all that a request and its answer may have."""

    tokens: int = USUAL

    @property
    def answer(self) -> int:
        """The most tokens of an answer."""
        return min(_LONGEST_ANSWER, self.tokens // 12)

    @property
    def full(self) -> int:
        """A conversation of so many tokens is to be summed up."""
        return self.tokens * 3 // 4

    @property
    def most(self) -> int:
        """A larger conversation has no room for its summary: only its end can be summed up. What fits leaves room
        for an answer, and for a summary after that.
        """
        return self.tokens - 2 * self.answer - self.tokens // 64
