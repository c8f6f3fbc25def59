"""What the machine has to give to agents."""

from __future__ import annotations

from typing import Protocol


class Capacity(Protocol):
    """How much of the machine is left. Asked by `core/work/dispatch` before each claim."""

    def room(self) -> int:
        """For how many more agents there is memory and time."""
        ...

    def short(self) -> bool:
        """Whether there is no memory for another one; then agents at rest are ended, one at each look."""
        ...
