"""The phases of a runner, and every move from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RunnerPhase(StrEnum):
    """Where a runner is."""

    OPENING = "opening"
    TAKING_UP = "taking_up"
    FEEDING = "feeding"
    IN_TURN = "in_turn"
    IDLE = "idle"
    INTERRUPTED = "interrupted"
    BROKEN = "broken"
    LEFT = "left"


PHASES: Final[Mapping[RunnerPhase, Mapping[RunnerPhase, str]]] = {
    RunnerPhase.OPENING: {
        RunnerPhase.TAKING_UP: "its agent is up",
        RunnerPhase.OPENING: "the session was changed meanwhile",
        RunnerPhase.INTERRUPTED: "an interrupt came first",
        RunnerPhase.BROKEN: "its agent cannot be started",
    },
    RunnerPhase.TAKING_UP: {
        RunnerPhase.IN_TURN: "a turn has begun already",
        RunnerPhase.FEEDING: "none has",
        RunnerPhase.BROKEN: "its agent or sandbox fails",
    },
    RunnerPhase.FEEDING: {
        RunnerPhase.IN_TURN: "inputs are ready",
        RunnerPhase.TAKING_UP: "the budget that stopped its turn is raised",
        RunnerPhase.FEEDING: "something changed; look again",
        RunnerPhase.IDLE: "there is nothing to do",
        RunnerPhase.BROKEN: "its agent or sandbox fails",
    },
    RunnerPhase.IN_TURN: {
        RunnerPhase.FEEDING: "the turn is over",
        RunnerPhase.BROKEN: "its agent or sandbox fails",
    },
    RunnerPhase.IDLE: {
        RunnerPhase.TAKING_UP: "an input arrives",
        RunnerPhase.LEFT: "its agent is ended",
    },
    RunnerPhase.INTERRUPTED: {
        RunnerPhase.OPENING: "an input follows the interrupt",
        RunnerPhase.LEFT: "nothing follows",
    },
    RunnerPhase.BROKEN: {
        RunnerPhase.OPENING: "it is tried again",
        RunnerPhase.INTERRUPTED: "an interrupt comes while it waits",
        RunnerPhase.LEFT: "it waits for the next input",
    },
    RunnerPhase.LEFT: {},
}
"""From each phase, where a runner may go, and why. `docs/architecture.md` draws it."""
