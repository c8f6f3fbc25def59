"""Backends by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.errors import StartupError
from roost.registry import Registry

GROUP = "roost.things_of_a_test"


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    """A registry of one shipped thing, and a package that brings two, one under the same name."""
    about = tmp_path / "thing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    points = "shipped = os:sep\nbrought = os.path:join\nbroken = os:nothing_of_that_name\n"
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("thing", GROUP, {"shipped": "math:pi"})


def test_what_is_shipped_comes_first_and_cannot_be_replaced(things: Registry[object]) -> None:
    assert list(things) == ["shipped", "brought", "broken"]
    assert things.load("shipped") == pytest.approx(3.14159, abs=1e-5)


def test_what_a_package_brings_is_imported_when_it_is_asked_for(things: Registry[object]) -> None:
    assert "brought" in things
    assert callable(things.load("brought"))
    with pytest.raises(StartupError, match="the thing 'broken' cannot be imported from os:nothing"):
        things.load("broken")


def test_a_name_that_nothing_has_is_refused_with_those_there_are(things: Registry[object]) -> None:
    with pytest.raises(StartupError, match="ROOST_THING: there is no thing 'other'") as refused:
        things.check("other", "ROOST_THING")
    assert refused.value.hint == "There is: shipped, brought, broken."
