"""Which sandboxes the operator has chosen."""

from __future__ import annotations

from roost.config import Settings, words
from roost.errors import StartupError
from roost.ports.sandbox_provider import SandboxProvider
from roost.sandboxes import HOST, SANDBOXES


def chosen(settings: Settings) -> SandboxProvider:
    """What opens the sandboxes of sandboxed sessions. :raises StartupError: there is none of that name"""
    return _isolating(settings.sandbox, settings, "ROOST_SANDBOX")


def others(settings: Settings) -> list[SandboxProvider]:
    """What sessions may fall back to, and the host, if there are trust levels for that.

    :raises StartupError: there is none of that name
    """
    names = dict.fromkeys(words(settings.sandbox_fallbacks))
    found = [
        _isolating(name, settings, "ROOST_SANDBOX_FALLBACKS")
        for name in names
        if name != settings.sandbox
    ]
    if set(words(settings.trust_levels)) - {"sandboxed"}:
        found.append(SANDBOXES.load(HOST)(settings))
    return found


def fallbacks() -> list[str]:
    """The names of the sandboxes that a session may ask for where its own is missing."""
    return [name for name in SANDBOXES if name != HOST]


def _isolating(name: str, settings: Settings, setting: str) -> SandboxProvider:
    SANDBOXES.check(name, setting)
    provider = SANDBOXES.load(name)(settings)
    if not provider.isolates:
        raise StartupError(
            f"{setting}: {name!r} does not isolate what runs in it",
            hint="Sessions get it by their trust level: see ROOST_TRUST_LEVELS.",
        )
    return provider
