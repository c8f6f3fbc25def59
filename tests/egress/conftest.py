"""A way out, a model behind it, and somebody inside."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.egress.both_sides import EgressSetup, Far


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def directory() -> Generator[Path, None, None]:
    with tempfile.TemporaryDirectory(prefix="egress-") as name:
        yield Path(name) / "run"


@pytest.fixture
async def far() -> AsyncGenerator[Far, None]:
    async with Far().listening() as server:
        yield server


@pytest.fixture
async def egress_setup(far: Far, directory: Path) -> EgressSetup:
    return EgressSetup(far, directory)
