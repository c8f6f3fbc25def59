"""Which server of models a session's request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.domain.upstream import Upstream, plain_id
from roost.egress.reports import Refusal
from roost.egress.upstream import UpstreamClient

OWN: Final = "vault"
"""What a server is called that a session has brought itself."""


class ModelRoute(msgspec.Struct, frozen=True):
    """A server of models, as one session uses it."""

    upstream: Upstream
    client: UpstreamClient


class ModelRoutes:
    """The servers that one session may use, in the operator's order; the first that serves a model gets its
    requests. `model` is the agent's own: what names no model goes to its server.
    """

    def __init__(self, routes: Sequence[ModelRoute], model: str) -> None:
        self._routes = routes
        self.usual = self._find(model) or routes[0]

    def of(self, model: str) -> ModelRoute:
        """Where a request for this model goes. :raises Refusal: nobody serves it"""
        found = self._find(model) if model else self.usual
        if found is None:
            raise Refusal(
                400, f"model: {model[:100]!r} is not served here", reason="model_not_allowed"
            )
        return found

    def _find(self, model: str) -> ModelRoute | None:
        return next((each for each in self._routes if each.upstream.serves(plain_id(model))), None)
