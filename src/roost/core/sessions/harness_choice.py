"""Which harness a new session gets, and whether there is a server for its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.domain.upstream import Upstreams
from roost.errors import InvalidRequest
from roost.ports.harness import Harness
from roost.ports.harness_profile import HarnessProfile


class HarnessChoice:
    """The harnesses of this server; a session that names none gets `default`."""

    def __init__(
        self, harnesses: Mapping[str, Harness], default: str, upstreams: Upstreams
    ) -> None:
        self._harnesses = harnesses
        self._default = default
        self._upstreams = upstreams

    def chosen(self, name: str | None) -> str:
        """The name of the harness that a session gets. :raises InvalidRequest: it is not here"""
        chosen = self._default if name is None else name
        if chosen not in self._harnesses:
            known = ", ".join(sorted(self._harnesses))
            raise InvalidRequest(
                f"harness: {chosen!r} is not available here", hint=f"There is: {known}."
            )
        return chosen

    def profile(self, name: str) -> HarnessProfile:
        """What a harness that was chosen declares."""
        return self._harnesses[name].profile

    def check_model(self, name: str, agent: Mapping[str, Any]) -> None:
        """Refuse a model that no server serves by the API that the harness speaks. :raises ModelNotServed:"""
        self._upstreams.check(agent["model"]["id"], self.profile(name).upstream)
