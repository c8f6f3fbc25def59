"""The parts of a harness that a test which brings its own agent need not think about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.sandbox_provider import Mount

ALL_ABILITIES = Abilities(**dict.fromkeys(Abilities.__struct_fields__, True))


class FakeHarness:
    """A harness without `open`: subclass it, and say whether it is to have a sandbox."""

    name = "fake"
    profile = HarnessProfile(abilities=ALL_ABILITIES, needs_sandbox=False, upstream="anthropic")
    mounts: Sequence[Mount] = ()

    def check(self) -> str:
        """There is nothing that could be missing."""
        return "fake"

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        """The agent's own and no other."""
        own = agent["model"]["id"]
        return [] if "*" in own else [own]


IN_SANDBOX = replace(FakeHarness.profile, needs_sandbox=True)
"""The profile of a harness whose agent lives in a sandbox."""
