"""What every part of the kit is given."""

from __future__ import annotations

import pytest

from roost.ports.store import Store
from roost.testing.stage import Stage


class StoreContract:
    """Tests of an empty store that is open while the test runs."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop the server runs on."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> Store:
        """The store that is tested, empty."""
        raise NotImplementedError

    @pytest.fixture
    def stage(self, store: Store) -> Stage:
        """The store, and short ways to situations in it."""
        return Stage(store)
