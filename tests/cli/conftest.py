from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.fake import Fake, FakeServer

from roost.cli.main import run

Outcome = tuple[int, str, str]
Roost = Callable[..., Outcome]
Start = Callable[[Fake], str]


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ROOST_URL", "ROOST_API_KEY", "ROOST_PORT", "ROOST_HOST", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROOST_DATA", str(tmp_path / "data"))


@pytest.fixture
def roost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run the command in this process: its exit code, what it printed, and what on the other."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["roost", *arguments])
        with pytest.raises(SystemExit) as left:
            run()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Put a fake server on a port and point the command at it."""
    with ExitStack() as servers:

        def started(fake: Fake) -> str:
            url = servers.enter_context(FakeServer(fake))
            monkeypatch.setenv("ROOST_URL", url)
            return url

        yield started
