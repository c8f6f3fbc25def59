"""Real parts that some tests need: found, or named aloud."""

from __future__ import annotations

import os

import pytest

_MISSING = " is missing; get it with: "


def need(part: str, ok: object, how_to_get: str) -> None:
    """Go on if the part is there; else skip with the command that gets it. In CI, fail instead."""
    if ok:
        return
    message = f"{part}{_MISSING}{how_to_get}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


class MissingParts:
    """Collects which parts a run has missed. The floor of coverage is for a machine that has all of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every process's reports come by here, before the coverage is counted."""
        if not report.skipped or not isinstance(report.longrepr, tuple):
            return
        name, found, _ = str(report.longrepr[2]).removeprefix("Skipped: ").partition(_MISSING)
        if found:
            self._names.add(name)
            if coverage := self._config.pluginmanager.getplugin("_cov"):
                coverage.options.cov_fail_under = 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it once, at the end."""
        if self._names:
            named = ", ".join(sorted(self._names))
            terminalreporter.write_line(f"Not on this machine: {named}. Its tests were skipped,")
            terminalreporter.write_line("and the floor of coverage was not asked for.")
