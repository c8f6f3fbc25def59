from __future__ import annotations

import re

import pytest
from tests.docs.reading import ROOT, rows, text

from roost.api.operations import OPERATIONS
from roost.domain.session import TABLE
from roost.domain.webhook import EVENT_TYPES

_EVENT = re.compile(
    r'"((?:(?:session|agent|user|span|system)\.|roost\.agent_)[a-z_]+|roost\.(?:forked|imported|rewound))"'
)


@pytest.mark.parametrize("served", [True, False])
def test_every_operation_is_documented_as_served_or_refused(served: bool) -> None:
    heading = "## What is served" if served else "## What is refused"
    section = text("docs/api.md").partition(heading)[2].partition("\n## ")[0]
    told = {line for line in section.splitlines() if line.startswith("| `")}
    known = {
        f"| `{operation.name}` | `{operation.method} {operation.path}` |"
        for operation in OPERATIONS
        if operation.served is served
    }
    assert told == known


def test_every_event_the_code_speaks_of_is_documented() -> None:
    named = {
        event
        for path in (ROOT / "src" / "roost").rglob("*.py")
        for event in _EVENT.findall(path.read_text())
    }
    told = {row[0].strip("`") for row in rows("docs/events.md")}
    assert named - told == set()


def test_every_event_of_webhooks_is_documented() -> None:
    section = text("docs/events.md").partition("## What webhooks are told")[2]
    told = re.findall(r"^\| `([a-z_.]+)` \|", section, re.M)
    assert sorted(told) == sorted(EVENT_TYPES)


def test_the_picture_of_a_sessions_status_is_the_table_in_the_code() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", text("docs/events.md"), re.M))
    assert drawn == {(before, after, move) for (before, move), after in TABLE.items()}
