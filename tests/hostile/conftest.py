"""All of these need a machine that can give a sandbox."""

from __future__ import annotations

import pytest
from tests.hostile.probed_sandbox import need_bubblewrap


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_bubblewrap()
