"""The bell within one process keeps the contract."""

from __future__ import annotations

import pytest

from roost.stores.bell import LocalBell
from roost.testing.bell_contract import BellContract


class TestLocalBell(BellContract):
    @pytest.fixture
    async def bell(self) -> LocalBell:
        return LocalBell()
