"""A pool served by Roost, for sandboxes of another server: what the tests of `pool` sandboxes share."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.pool.pool_server import make_pool

from roost.dynamic_sessions import CodePool
from roost.sandboxes.pool import PoolProvider
from roost.testing.live import LiveServer
from roost.testing.sandbox_contract.kit import Heart

POOL = "places"
SECRET = "a secret that nobody can guess"
MODULE = "pool_under_test"
_FACTORY = """
from pathlib import Path
from roost.sandboxes.pool import PoolProvider

def make():
    return PoolProvider(endpoint={endpoint!r}, token={token!r}, secret={secret!r}, notes=Path({notes!r}), leash=20.0)
"""


class PoolHeart(Heart):
    """The heart of a session whose files are those of an identifier, which are below the pool's own data."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self._data = data
        self._most = 0

    def _size(self) -> int:
        """Never less than it was: when an identifier is let go, its files go."""
        for file in self._data.glob("vault/.workspaces/*/heartbeat"):
            try:
                self._most = max(self._most, file.stat().st_size)
            except OSError:
                continue
        return self._most


class SandboxPool:
    """The server with the pool."""

    def __init__(self, server: LiveServer, root: Path) -> None:
        self.server = server
        self.root = root

    @property
    def endpoint(self) -> str:
        return f"{self.server.url}/roost/v1/pools/{POOL}"

    async def replace(self, identifier: str) -> None:
        """End a container, as pools do; the next request for it gets a new one."""
        pool = CodePool(self.endpoint, self.server.key)
        try:
            await pool.end(identifier)
        finally:
            await pool.aclose()

    def provider(self, leash: float = 60.0, node: str = "notes") -> PoolProvider:
        return PoolProvider(
            endpoint=self.endpoint,
            token=self.server.key,
            secret=SECRET,
            notes=self.root / node,
            leash=leash,
        )


@contextmanager
def sandbox_pool(root: Path) -> Generator[SandboxPool, None, None]:
    """One for as long as the context lasts; `pool_under_test:make` makes providers of its sandboxes in any process."""
    with LiveServer(root / "pool", ROOST_VAULT=str(root / "pool" / "vault")) as server:
        make_pool(server, POOL)
        made = SandboxPool(server, root)
        module = root / f"{MODULE}.py"
        notes = str(root / "notes")
        module.write_text(
            _FACTORY.format(endpoint=made.endpoint, token=server.key, secret=SECRET, notes=notes)
        )
        sys.path.insert(0, str(root))
        try:
            yield made
        finally:
            sys.path.remove(str(root))
            sys.modules.pop(MODULE, None)
