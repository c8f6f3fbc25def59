"""What servers of models say that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as its server lists it. What the server does not say is empty."""

    id: str
    display_name: str = ""
    created_at: str = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class ModelLists(Protocol):
    """Asks the operator's servers of models for their lists."""

    async def listed(self, name: str) -> Sequence[ListedModel]:
        """What the server with this name lists, as it said not long ago.

        Called by `core/records/models` for each server, at the same time. One that does not answer, or has no
        list, gives nothing: that is no failure of whoever asks.
        """
        ...
