"""What goes wrong in a session has a name, and the name is written down."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.reading import ROOT, rows

from roost.errors import RoostError

ROOMS = ("core", "domain", "harnesses", "ports")
NAMED = re.compile(
    r"""[tT]rouble\(\s*"(\w+)"|"(\w+_error)"|return \(\s*"(workspace_\w+)"|= "(network_\w+)","""
)


def sources() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in (ROOT / "src/roost" / room).rglob("*.py"):
            yield str(path.relative_to(ROOT / "src/roost")), path.read_text()


def told() -> set[str]:
    """The names in the table of a turn's errors."""
    found = [row[0] for row in rows("docs/errors.md") if not row[0].startswith("`")]
    return {name for cell in found for name in cell.split(", ")}


def test_only_what_nobody_knows_is_an_unknown_error() -> None:
    places = [name for name, text in sources() for _ in re.findall("unknown_error", text)]
    # One says so of an exception that it does not know, one to clients that know official names only. The API's
    # types of a run's errors are a closed list, which has no other one for a key that was revoked.
    runs = [
        "core/sessions/run_faults.py",
        "core/sessions/scheduled_runs.py",
        "domain/deployment.py",
    ]
    assert sorted(places) == [*runs[:2], "core/work/failures.py", runs[2], "ports/drafts.py"], (
        "name it: a code in errors.py, or a row in docs/errors.md"
    )


def test_every_name_of_trouble_is_written_down() -> None:
    names = {name for _, text in sources() for found in NAMED.findall(text) for name in found}
    api = {"invalid_request_error", "authentication_error", "permission_error", "not_found_error"}
    api |= {"rate_limit_error", "timeout_error", "overloaded_error", "api_error", "is_error"}
    api |= {"connect_error"}  # what became of the renewal of a token
    assert names - api - {"", RoostError.code} <= told()
