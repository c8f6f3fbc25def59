"""The default: namespaces, a dropped uid, no capabilities, two system-call filters, limits.

`docs/sandboxes.md` says what is in force, what was tried against it, and the traps. A reader may take
the files in this order: `provider` (opens sandboxes), `sandbox` (one of them), `recipe` (what is inside),
`launch` (what happens before), `root` (what it may write to), then `identity`, `etc`, `seccomp`, `disk`.
"""

from __future__ import annotations

from typing import Final

from roost.config import Settings
from roost.sandboxes.bubblewrap.provider import BubblewrapProvider

__all__ = ["BubblewrapProvider", "make"]

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"  # where a machine has its own bwrap


def make(settings: Settings) -> BubblewrapProvider:
    """Make the provider from the settings; `SANDBOXES` names this function."""
    return BubblewrapProvider(path=_PATH, data=settings.data.resolve())
