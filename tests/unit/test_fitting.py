"""Which inputs a person may give to a tool instead of the agent's own."""

from __future__ import annotations

from typing import Any

import pytest

from roost.domain.fitting import misfit

ASKED = {"command": "rm -rf build", "description": "Clean up"}


@pytest.mark.parametrize(
    "given",
    [{"command": "ls"}, {"command": "ls", "timeout": 5}, {"command": "x", "description": "y"}],
)
def test_what_the_tool_can_take_fits(given: dict[str, Any]) -> None:
    assert misfit("bash", ASKED, given) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "command"),
        ({"cmd": "ls"}, "command"),
        ({"command": 5}, "command"),
        ({"command": None}, "command"),
        ({"command": "ls", "colour": "red"}, "colour"),
        ({"command": "ls", "description": ["a"]}, "description"),
    ],
)
def test_what_it_cannot_take_is_named(given: dict[str, Any], named: str) -> None:
    assert named in str(misfit("bash", ASKED, given))


def test_of_a_tool_of_somebody_else_only_the_call_is_known() -> None:
    asked = {"id": 7, "deep": {"a": 1}}
    assert misfit("lookup", asked, {"id": 8.5, "more": "x"}) is None
    assert "id" in str(misfit("lookup", asked, {"id": "8"}))
    assert misfit("lookup", asked, {}) == "must not be empty"
    assert misfit("ping", {}, {}) is None
