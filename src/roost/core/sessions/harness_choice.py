"""Which harness a new session gets, and whether there is a server for its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.domain.llm_vault import LlmVault
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

    def chosen(self, name: str | None, vault: LlmVault | None) -> str:
        """The name of the harness that a session gets: the one it names, or that its LLM vault does.

        :raises InvalidRequest: it is not here, or cannot use the vault's key
        """
        if vault is not None:
            return self._engine(name, vault)
        chosen = self._default if name is None else name
        if chosen not in self._harnesses:
            known = ", ".join(sorted(self._harnesses))
            raise InvalidRequest(
                f"harness: {chosen!r} is not available here", hint=f"There is: {known}."
            )
        return chosen

    def _engine(self, name: str | None, vault: LlmVault) -> str:
        """The harness of an LLM vault. Its key is put on by the egress, so its requests have to go that way."""
        engine = vault.engine
        if name is not None and name != engine:
            raise InvalidRequest(
                f"harness: {name!r} is not the engine of the LLM vault, {engine!r}"
            )
        able = [each for each in self._harnesses if self.profile(each).abilities.budget]
        if engine not in able:
            what = "cannot use a vault's key" if engine in self._harnesses else "is not available"
            raise InvalidRequest(
                f"vault_ids: the engine {engine!r} of the LLM vault {what} here",
                hint=f"There is: {', '.join(sorted(able)) or 'none'}.",
            )
        return engine

    def profile(self, name: str) -> HarnessProfile:
        """What a harness that was chosen declares."""
        return self._harnesses[name].profile

    def check_model(self, name: str, agent: Mapping[str, Any]) -> None:
        """Refuse a model that no server serves by the API that the harness speaks. :raises ModelNotServed:"""
        self._upstreams.check(agent["model"]["id"], self.profile(name).upstream)
