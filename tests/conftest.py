"""Before any test imports the shipped kits: their assertions explain themselves like a test's own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from httpx2._transports import default as transports
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.parts import MissingParts, need

if TYPE_CHECKING:
    from roost.testing.postgres import PostgresServer
    from tests.engines import LiveEngine
    from tests.stores import Copies, Databases

pytest.register_assert_rewrite("roost.testing")

# A shell's background job ignores Ctrl-C, and so would every program that the tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A client reads all the machine's certificates, also for `http://`: that takes longer than many a test.
transports.create_ssl_context = cache(transports.create_ssl_context)

# How long one example takes is a matter of what else the machine has to do.
settings.register_profile(
    "roost", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("roost")

_SHARED = {"server", "browser", "target"}


def pytest_configure(config: pytest.Config) -> None:
    """What was missed is known where all reports meet."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(MissingParts(config))


def pytest_itemcollected(item: pytest.Item) -> None:
    """What the tests of a module share is started once: one worker runs them all."""
    shares = _SHARED & set(getattr(item, "fixturenames", ()))
    if shares and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}.{item.path.stem}"))


@pytest.fixture(autouse=True)
def _clients_are_closed() -> Generator[None, None, None]:
    yield
    if chats := sys.modules.get("tests.journeys.chat"):
        chats.close_clients()


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store", choices=["sqlite", "postgres", "both"], help="which store to run journeys on"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of those rooms that has a folder for a server's data has a database, too."""
    from tests.stores import kinds_of

    if not {"tmp_path", "tmp_path_factory"} & set(metafunc.fixturenames):
        return
    if kinds := kinds_of(metafunc.definition, metafunc.config.getoption("store")):
        metafunc.parametrize("databases", kinds, indirect=True, scope="module")


_OTHER_PROCESSES = {"faults", "fuzz", "gateway", "hostile", "journeys", "nodes", "sdk", "web"}
_READ_ONLY = {"test_architecture", "test_pages", "test_shape", "test_trouble", "test_words"}
_QUICK = {"docs", "egress", "serve", "unit"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Being measured doubles what a test costs, so not all are. And what takes long begins early: at the end
    of a run there are only tests that several workers finish at the same time.
    """
    for item in items:
        if not _is_measured(item):
            item.add_marker("no_cover")
        if hasattr(config, "workerinput"):
            _name_group(item)
    items.sort(key=lambda item: item.path.parent.name in _QUICK)


def _name_group(item: pytest.Item) -> None:
    """What is sent to one worker is told by the ends of names. pytest-xdist 3.8 writes them where pytest 9.2
    does not look any more; without them each worker would start a server of its own for each module.
    """
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return
    if not item.nodeid.endswith(end := f"@{group.args[0]}"):
        item._id = type(item._id).parse(item.nodeid + end)
    assert item.nodeid.endswith(end)


def _is_measured(item: pytest.Item) -> bool:
    """Not if the code that is tested runs in processes of its own, if the code is read and not run, if a
    test of the API is measured on the other store, or if Hypothesis runs the same lines a hundred times.
    """
    if not isinstance(item, pytest.Function):
        return True
    params = item.callspec.params if hasattr(item, "callspec") else {}
    match item.path.parent.name:
        case "api":
            return params.get("databases") != "postgres"
        case "docs":
            return item.path.stem not in _READ_ONLY
        case room:
            return room not in _OTHER_PROCESSES and not is_hypothesis_test(item.obj)


@pytest.fixture(scope="session")
def copies(postgres: PostgresServer) -> Generator[Copies, None, None]:
    """Databases on the tests' PostgreSQL."""
    from tests.stores import copying

    with copying(postgres) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def databases(request: pytest.FixtureRequest) -> Generator[Databases, None, None]:
    """Those of a test's houses and servers. A fixture that keeps one of these for longer than a test asks
    for this one, so that it ends before the next kind of store begins."""
    from tests.stores import Files, used

    on_files = getattr(request, "param", "sqlite") == "sqlite"
    chosen = Files() if on_files else request.getfixturevalue("copies")
    with used(chosen):
        yield chosen


@pytest.fixture(autouse=True)
def tidy(databases: Databases, request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """A test's own databases end with it: they are in memory, and those of a whole run would not fit."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        databases.drop(folder)
