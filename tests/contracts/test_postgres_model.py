"""The random walks of `test_sqlite_model`, over PostgreSQL: the same model, the same outcomes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from tests.contracts import test_sqlite_model as walks

from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer


class OnPostgres(walks.Machine):
    server: ClassVar[PostgresServer]
    url = ""

    def open(self) -> None:
        self.url = self.url or self.portal.call(self.server.new)
        self.opened: Any = self.portal.wrap_async_context_manager(PostgresStore.open(self.url))
        self.store: Any = self.opened.__enter__()

    def reopened(self) -> None:
        """Nodes are rows here: they live on, if their process says so before others miss its lock."""
        for node in self.living:
            for seconds in (0, 600):  # in a new row, whose lock nobody has missed
                self.call(self.store.log.renew, node, seconds)


class Longer(OnPostgres):
    pass


@pytest.fixture(autouse=True)
def server(postgres: PostgresServer) -> None:
    OnPostgres.server = postgres


class TestPostgres(OnPostgres.TestCase):  # type: ignore[misc]
    """What it finds is not made smaller: that takes longer than a test may, and would hide it."""

    settings = settings(
        walks.TestStore.settings,
        max_examples=3,
        stateful_step_count=25,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


@pytest.mark.chaos
@pytest.mark.timeout(1800)
class TestPostgresAtLength(Longer.TestCase):  # type: ignore[misc]
    settings = settings(walks.TestStore.settings, max_examples=150, stateful_step_count=60)
