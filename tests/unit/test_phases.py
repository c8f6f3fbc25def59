"""The phases of a runner: every one can be left, and the picture in the docs is the table."""

from __future__ import annotations

import re
from pathlib import Path

from roost.core.work.phases import PHASES, RunnerPhase


def test_every_phase_has_its_moves_and_a_way_to_leave():
    assert set(PHASES) == set(RunnerPhase)
    leaves = {RunnerPhase.LEFT}
    while more := {phase for phase in PHASES if leaves & PHASES[phase].keys()} - leaves:
        leaves |= more
    assert leaves == set(RunnerPhase)


def test_every_phase_can_be_reached():
    reached = {RunnerPhase.OPENING}
    while more := {to for phase in reached for to in PHASES[phase]} - reached:
        reached |= more
    assert reached == set(RunnerPhase)


def test_the_docs_draw_the_table():
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    drawn = re.findall(
        r"^    (\w+) --> (\w+): (.+)$", page.partition("## A runner's phases")[2], re.M
    )
    table = [(phase, to, why) for phase, moves in PHASES.items() for to, why in moves.items()]
    assert drawn == table
