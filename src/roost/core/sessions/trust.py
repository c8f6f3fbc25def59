"""How far a session is trusted, and which kind of sandbox that gives it: settled once, when it is made.

Nothing that happens later changes it. A sandbox that is missing, a follow-up that names another level
or none, an operator who no longer offers the level: the session waits, and stays what it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from roost.core.access.permissions import may_ask_for
from roost.core.sandbox.offered import OfferedSandboxes
from roost.domain.session import ON_HOST, Spec, TrustLevel
from roost.errors import Forbidden, InvalidRequest, SandboxUnavailable
from roost.ports.egress import Networking
from roost.ports.keys import Key


class Trust:
    """What this server offers to new sessions."""

    def __init__(self, offered: OfferedSandboxes) -> None:
        self._offered = offered
        self._levels = offered.levels

    def check(self, caller: Key, spec: Spec) -> None:
        """Whether the caller may have such a session, and such a fallback, on this server.

        :raises Forbidden: it is more than the key may ask for
        :raises InvalidRequest: the server does not offer it
        """
        self._check_level(caller, spec.trust_level, "trust_level")
        if (level := _level(spec.sandbox_fallback)) is not None:
            self._check_level(caller, level, "sandbox_fallback")
        elif spec.sandbox_fallback is not None:
            self._offered.check_kind(spec.sandbox_fallback)

    def offered(self, caller: Key) -> list[TrustLevel]:
        """The levels that a new session of the caller's may have on this server."""
        return [level for level in self._levels if may_ask_for(caller, level)]

    async def placed(self, spec: Spec, networking: Networking) -> Spec:
        """The spec with the kind of sandbox the session gets: the server's own, or the named fallback.

        :raises SandboxUnavailable: there is none to be had
        :raises InvalidRequest: the environment sets limits that nobody could hold it to
        """
        given = self._offered.assigned(spec)
        try:
            await self._offered.check(given)
        except SandboxUnavailable as missing:
            given = self._offered.assigned(_fallen_back(spec, missing))
            await self._offered.check(given)
        if given.trust_level != "sandboxed" and networking.kind == "limited":
            raise InvalidRequest(
                f"trust_level: {given.trust_level!r} runs on the host, where the environment's "
                "limited networking cannot be enforced",
                hint="Use an environment with unrestricted networking, or a sandboxed session.",
            )
        return given

    def _check_level(self, caller: Key, level: TrustLevel, field: str) -> None:
        if not may_ask_for(caller, level):
            raise Forbidden(
                f"{field}: this key may ask for {caller.trust_ceiling!r} at most, not {level!r}"
            )
        if level not in self._levels:
            raise InvalidRequest(
                f"{field}: this server does not offer {level!r}",
                hint=f"It offers: {', '.join(self._levels)}. The operator sets ROOST_TRUST_LEVELS.",
            )


def _fallen_back(spec: Spec, missing: SandboxUnavailable) -> Spec:
    """As the caller named it. To run on the host is a trust level, and is recorded as one.

    :raises SandboxUnavailable: the caller named nothing, or runs on the host already
    """
    fallback = spec.sandbox_fallback
    if fallback is None or spec.trust_level != "sandboxed":
        raise missing
    if (level := _level(fallback)) is not None:
        return replace(spec, trust_level=level)
    return replace(spec, sandbox=fallback)


def _level(fallback: str | None) -> TrustLevel | None:
    """The trust level that a fallback names; None if it names a kind of sandbox."""
    return next((level for level in ON_HOST if level == fallback), None)
