"""Objects of the API, against the types of every SDK that is supported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.parts import need

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / ".tools"
PYTHONS = {
    "installed": Path(sys.executable),
    "0.121.0": TOOLS / "py-0.121.0" / "bin" / "python",
    "1.17.0": TOOLS / "py-1.17.0" / "bin" / "python",
}
EVENT = ("sessions.BetaManagedAgentsSessionEvent",)

Answers = Sequence[tuple[tuple[str, ...], Any]]
"""Objects, each with the names that its type has in one SDK or another."""


def check_types(version: str, answers: Answers) -> None:
    """Each is what the types of this SDK say, strictly."""
    python = PYTHONS[version]
    need(f"the SDK {version}", python.exists(), "make test")
    done = subprocess.run(
        [python, HERE / "strict.py"],
        input=json.dumps(answers),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
