"""Adapters that open sandboxes (`ports/sandbox_provider`): one file or folder for each kind, and what they share.

A sandbox is found by its name in `SANDBOXES`. Its factory is given the settings and makes the provider
without looking at the machine: whether it can be used here, `SandboxProvider.check` says. Packages add
their own by entry points of the group `roost.sandboxes`; CONTRIBUTING has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roost.config import Settings
from roost.ports.sandbox_provider import SandboxProvider
from roost.registry import Registry

SandboxFactory = Callable[[Settings], SandboxProvider]

SANDBOXES: Final = Registry[SandboxFactory](
    "sandbox",
    "roost.sandboxes",
    {
        "bubblewrap": "roost.sandboxes.bubblewrap:make",
        "docker": "roost.sandboxes.docker:make",
        "host": "roost.sandboxes.host:make",
        "pool": "roost.sandboxes.pool:make",
    },
)

HOST: Final = "host"
"""Which one sessions get that are trusted enough to need no isolation."""
