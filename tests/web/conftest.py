"""A real Chromium on the real server: what a person sees and does."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.web.person import Person, chromium

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def settings() -> dict[str, str]:
    return {"ROOST_HARNESS": "claude", "ROOST_SLEEP_AFTER": "60"}


@pytest.fixture
def width() -> int:
    return 1100


@pytest.fixture
def touch() -> bool:
    """Whether the screen is what the person has instead of a mouse."""
    return False


@pytest.fixture
def server(tmp_path: Path, settings: dict[str, str]) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", **settings) as live:
        yield live


@pytest.fixture
def person(
    request: pytest.FixtureRequest, browser: Browser, server: LiveServer, width: int, touch: bool
) -> Iterator[Person]:
    somebody = Person(request.node.name, browser, server, width=width, touch=touch)
    yield somebody
    somebody.leave(content=not request.node.stash.get(_FAILED, False))
