"""The app's own unit tests: how it reads the log, in the language it is written in."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from tests.parts import need


def test_the_units_of_the_browser_app():
    need("the app's packages", Path("web/node_modules/vitest").exists(), "make setup")
    npm = Path(sysconfig.get_path("scripts")) / "npm"
    done = subprocess.run(
        [npm, "test"], cwd="web", capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
