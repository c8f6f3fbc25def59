from __future__ import annotations

import re
from importlib import import_module

from tests.contracts.containers import KNOWN
from tests.contracts.test_podman import InPodman
from tests.docs.reading import rows
from tests.hostile.test_probes import HARMLESS

from roost.testing.probes.inside.kit import PROBES

_KINDS = ("bubblewrap", "Docker", "Podman")


def test_the_table_of_probes_says_what_the_tests_find() -> None:
    told: dict[str, dict[str, str]] = {}
    for names, _, *marks in (row for row in rows("docs/sandboxes.md") if len(row) == 5):
        for name in re.findall(r"`(\w+\.\w+)`", names):
            told[name] = dict(zip(_KINDS, marks, strict=True))
    for module in ("files", "processes", "identity", "network", "kernel"):
        import_module(f"roost.testing.probes.inside.{module}")
    assert told.keys() == PROBES.keys()
    found = {kind: {name for name in told if told[name][kind].isalpha()} for kind in _KINDS}
    assert found == {
        "bubblewrap": HARMLESS,
        "Docker": HARMLESS | KNOWN.keys(),
        "Podman": HARMLESS | InPodman.known.keys(),
    }
