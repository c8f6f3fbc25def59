"""Before any test imports the shipped kits: their assertions explain themselves like a test's own."""

from __future__ import annotations

import signal
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from httpx2._transports import default as transports

from tests.parts import need

if TYPE_CHECKING:
    from roost.testing.postgres import PostgresServer
    from tests.engines import LiveEngine

pytest.register_assert_rewrite("roost.testing")

# A shell's background job ignores Ctrl-C, and so would every program that the tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A client reads all the machine's certificates, also for `http://`: that takes longer than many a test.
transports.create_ssl_context = cache(transports.create_ssl_context)

_SHARED = {"server", "browser", "target"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """What the tests of a module share is started once: one worker runs them all."""
    shares = _SHARED & set(getattr(item, "fixturenames", ()))
    if shares and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}.{item.path.stem}"))


@pytest.fixture(scope="session")
def docker() -> Generator[LiveEngine, None, None]:
    """Docker's engine. Tests that use it are in the group of that name, so that one is enough."""
    from tests.engines import engine

    with engine("dockerd") as live:
        yield live


@pytest.fixture(scope="session")
def podman() -> Generator[LiveEngine, None, None]:
    """Podman's service, likewise."""
    from tests.engines import engine

    with engine("podman") as live:
        yield live


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer, None, None]:
    """A PostgreSQL server, started for the tests that ask for it."""
    from roost.testing.postgres import PostgresServer, programs

    need("PostgreSQL", programs(), "make setup")
    server = PostgresServer()
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
