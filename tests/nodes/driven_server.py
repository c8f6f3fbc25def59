"""`roost serve` with a clock for its schedules that a test sets, and which dies at a step of their work.

What it is told is in files of the folder in the first argument; `Drive` writes them. The clock stands still until
it is set, so that nothing depends on how long a busy machine takes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from roost.cli.main import run
from roost.core.sessions import scheduler
from roost.core.sessions.deployment_runs import DeploymentRuns
from roost.core.sessions.lifecycle import Lifecycle
from roost.serve import wiring
from roost.stores.sql.runs import SqlRuns
from roost.testing.cancelling import counted

STEPS: dict[str, tuple[type, str]] = {
    "claim": (SqlRuns, "claim"),  # the time, and its run
    "take": (SqlRuns, "take"),  # the run, for a minute
    "create": (Lifecycle, "create"),  # its session, with the first input
    "settle": (SqlRuns, "settle"),  # the note of that
    "advance": (DeploymentRuns, "advance"),  # from having taken it to the note
}
Step = Callable[..., Coroutine[Any, Any, Any]]


class Drive:
    """What the servers of a folder are told: the time, and where one of them is to die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._strike = folder / "strike"

    def set(self, name: str, at: int) -> None:
        """The clock of one of them, in microseconds."""
        new = self.folder / f"new-{name}"
        new.write_text(str(at))
        new.rename(self.folder / f"clock-{name}")

    def now(self, name: str) -> int:
        """What its clock shows."""
        return int((self.folder / f"clock-{name}").read_text())

    def strike(self, step: str, wait: int) -> None:
        """Whoever first waits there so often dies: 0 is before the step, -1 after it."""
        new = self.folder / "new-strike"
        new.write_text(f"{step} {wait}")
        new.rename(self._strike)

    def withdraw(self) -> bool:
        """Nobody has to die any more. True: somebody has."""
        try:
            self._strike.unlink()
        except FileNotFoundError:
            return True
        return False

    def wait_of(self, step: str) -> int | None:
        """Where one who begins this step now dies, if at all."""
        try:
            asked, wait = self._strike.read_text().split()
        except FileNotFoundError:
            return None
        return int(wait) if asked == step else None

    def die(self) -> None:
        """Unless another one has."""
        if not self.withdraw():
            os.kill(os.getpid(), signal.SIGKILL)


def _struck(drive: Drive, name: str, step: Step) -> Step:
    async def struck(*args: Any, **named: Any) -> Any:
        wait = drive.wait_of(name)
        if wait is None:
            return await step(*args, **named)
        if wait == 0:
            drive.die()
        result = await counted(step(*args, **named), wait, drive.die)
        if wait == -1:
            drive.die()
        return result

    return struck


def _main(folder: str, name: str, *command: str) -> None:
    drive = Drive(Path(folder))
    sys.argv = ["roost", *command[command.index("serve") :]]
    with ExitStack() as patches:
        for step, (owner, method) in STEPS.items():
            changed = _struck(drive, step, getattr(owner, method))
            patches.enter_context(patch.object(owner, method, changed))
        patches.enter_context(patch.object(wiring, "_wall_clock", lambda: drive.now(name)))
        patches.enter_context(patch.object(scheduler, "_LOOK_AGAIN", 0.1))
        run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
