"""Run all probes, each by itself, and print what they came to as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module

from roost.testing.probes.inside.kit import PROBES, outcome


def main() -> None:
    """The facts are about the host: where things are that should not be found."""
    facts = json.load(sys.stdin)
    for module in ("files", "processes", "identity", "network", "kernel"):
        import_module(f"roost.testing.probes.inside.{module}")
    os.chdir(tempfile.mkdtemp(dir=facts["cwd"]))
    results = {name: outcome(*found, facts) for name, found in PROBES.items()}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
