"""A sandbox in a pool of code elsewhere, such as Azure's dynamic sessions: the container of an identifier.

A reader may take the files in this order: `provider` (opens sandboxes), `sandbox` (one of them), `channels` (a command
or a connection in it), `link` (the two streams by which both sides speak), `transfer` (files, there and back), `claims`
(whose a container is), `notes` (which of them may be left), `rescue` (files of those whose server has ended) and `probe` (whether a pool can do all that). What runs on the other side is `guest/commands.py`.
"""

from __future__ import annotations

from roost.config import Settings
from roost.sandboxes.pool.provider import PoolProvider

__all__ = ["PoolProvider", "make"]


def make(settings: Settings) -> PoolProvider:
    """Make the provider from the settings; `SANDBOXES` names this function."""
    token, secret = settings.pool_token, settings.pool_secret
    return PoolProvider(
        endpoint=settings.pool_endpoint or "",
        token=None if token is None else token.get_secret_value(),
        secret="" if secret is None else secret.get_secret_value(),
        notes=settings.data / "pool-sandboxes",
    )
