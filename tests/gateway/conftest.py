from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.talk import Api
from tests.stores import Databases

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server for the tests of a file: they do not harm it."""
    data: Path = tmp_path_factory.mktemp("server") / "data"
    with LiveServer(data, ROOST_MODEL_RETRIES="1", ROOST_RETRY_SECONDS="0.05") as live:
        yield live


@pytest.fixture
def api(server: LiveServer) -> Iterator[Api]:
    with Api(server) as made:
        yield made
