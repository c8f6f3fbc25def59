"""A real Chromium on the real server: what a person sees and does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.parts import need
from tests.web.person import Person

from roost.testing.live import LiveServer

_QUIET = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    need("chromium", chromium, "scripts/install-test-parts chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=_QUIET)
        yield launched
        launched.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", ROOST_HARNESS="claude", ROOST_SLEEP_AFTER="60") as live:
        yield live


@pytest.fixture
def person(browser: Browser, server: LiveServer) -> Iterator[Person]:
    with Person(browser, server) as somebody:
        yield somebody
