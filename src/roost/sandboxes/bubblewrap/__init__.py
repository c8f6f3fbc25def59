"""The default place: namespaces, a dropped uid, no capabilities, two system-call filters, limits.

`docs/sandboxes.md` says what is in force, what was tried against it, and the traps. A reader may take
the files in this order: `provider` (gives places), `sandbox` (a place), `recipe` (what is inside),
`launch` (what happens before), then `identity`, `etc`, `seccomp`, `disk`.
"""

from roost.sandboxes.bubblewrap.provider import BubblewrapProvider

__all__ = ["BubblewrapProvider"]
