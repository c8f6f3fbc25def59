"""Which sandboxes and trust levels the operator offers to sessions."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from roost.domain.session import Spec, TrustLevel
from roost.errors import InvalidRequest, SandboxFailed, SandboxUnavailable
from roost.ports.sandbox_provider import SandboxProvider
from roost.ports.volumes import SessionVolumes

_log = logging.getLogger(__name__)


class OfferedSandboxes:
    """The providers of this server, by name.

    `default` is what sessions get that are made now; `others` are what they may fall back to, or had from
    the start. `levels` are the trust levels on offer.
    """

    def __init__(
        self,
        default: SandboxProvider,
        others: Sequence[SandboxProvider],
        levels: Sequence[TrustLevel],
        volumes: SessionVolumes,
    ) -> None:
        self.levels = levels
        self._default = default.name
        self._providers = {provider.name: provider for provider in (*others, default)}
        self._on_host = next((each.name for each in others if not each.isolates), "")
        self._volumes = volumes

    def assigned(self, spec: Spec) -> Spec:
        """The spec with the kind of sandbox that such a session gets when it is made."""
        return replace(spec, sandbox=self._kind(spec))

    def check_kind(self, kind: str) -> None:
        """Refuse a fallback that the operator does not offer.

        :raises InvalidRequest: the operator does not let sessions fall back to that
        """
        if kind not in self._providers or not self._providers[kind].isolates:
            known = ", ".join(
                sorted(each.name for each in self._providers.values() if each.isolates)
            )
            raise InvalidRequest(
                f"sandbox_fallback: {kind!r} is not offered here",
                hint=f"There is: {known}. The operator sets ROOST_SANDBOX_FALLBACKS.",
            )

    async def check(self, spec: Spec) -> None:
        """See whether such a session can have its sandbox now.

        :raises SandboxUnavailable: such a session cannot have its sandbox now
        """
        kind, level = self._kind(spec), spec.trust_level
        if level not in self.levels:
            raise SandboxUnavailable(
                f"this server does not offer the trust level {level!r}",
                hint="The session waits, and goes on once ROOST_TRUST_LEVELS has it again.",
            )
        if kind not in self._providers:
            raise SandboxUnavailable(
                f"the session has a {kind} sandbox, and this server has none",
                hint="The session waits, and goes on once ROOST_SANDBOX_FALLBACKS has it again.",
            )
        if level == "vault" or spec.mount_scope == "workspace+vault":
            self._volumes.check_vault()
        await self._providers[kind].check()

    def provider_for(self, spec: Spec) -> SandboxProvider:
        """Who opens the sandbox of such a session. Called once `check` has let it pass."""
        return self._providers[self._kind(spec)]

    async def sweep(self) -> None:
        """End what servers that were killed have left on this machine. Called when a server starts.

        What cannot be ended now is in nobody's way: opening a sandbox of the same session tries again.
        """
        for provider in self._providers.values():
            try:
                await provider.sweep()
            except SandboxFailed as error:
                # A kind that sessions only fall back to need not be on this machine.
                level = logging.WARNING if provider.name == self._default else logging.DEBUG
                _log.log(level, "cannot sweep: %s", error.message, extra={"action": "sweep"})

    def _kind(self, spec: Spec) -> str:
        if spec.trust_level == "sandboxed":
            return spec.sandbox or self._default
        return self._on_host
