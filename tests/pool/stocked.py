"""A sandbox of bubblewrap that shows this Python and its packages: it stands for a machine that has them installed.

Planted as a package of its own in a server's path, and named by `ROOST_SANDBOX`.
"""

from __future__ import annotations

import sys
import sysconfig
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec

from roost.config import Settings
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import Mount, Plan
from roost.sandboxes import bubblewrap

PACKAGES = "/run/stocked/packages"
_BASE = Path(sys.base_prefix).resolve()
_IS_THERE = _BASE.is_relative_to("/usr")
_SHOWN = str(_BASE) if _IS_THERE else "/run/stocked/python"
PYTHON = f"{_SHOWN}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
ENVIRON = {"PYTHONPATH": PACKAGES, **({} if _IS_THERE else {"LD_LIBRARY_PATH": f"{_SHOWN}/lib"})}


def make(settings: Settings) -> StockedProvider:
    return StockedProvider(bubblewrap.make(settings))


class StockedProvider:
    """Bubblewrap, with some mounts more."""

    name = "stocked"

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        packages = Path(sysconfig.get_path("purelib"))
        mounts = [
            Mount(packages, PACKAGES),
            # Where a session's sandbox has it: one that is in this pool need not be sent another.
            Mount(packages / "claude_agent_sdk" / "_bundled" / "claude", "/run/roost/claude"),
        ]
        if not _IS_THERE:
            mounts.append(Mount(_BASE, _SHOWN))
        opened: AbstractAsyncContextManager[Sandbox] = self._inner.open(
            msgspec.structs.replace(plan, mounts=[*plan.mounts, *mounts])
        )
        return opened


def planted(site: Path) -> Path:
    """What an installer leaves of this package, in a directory for a server's path."""
    about = site / "stocked-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "stocked.py").write_text(Path(__file__).read_text())
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stocked\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[roost.sandboxes]\nstocked = stocked:make\n")
    return site
