"""The tools' process, its sandbox or the whole server is killed while the loop of our own works: as with Claude Code.

Here the log says of every call whether it has run, or that this is unknown; and nothing is said or called twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill_claude import COMMANDS, VICTIMS, Worker, kill_at_random
from tests.journeys.chat import said

from roost.harnesses.message_history import UNKNOWN


class MessagesWorker(Worker):
    """A session with the loop of our own. Its agent has no process but that of its tools."""

    harness = "messages"
    program = "python3"

    def name_of(self, session_id: str) -> str:
        return session_id

    def runs(self, command: str) -> dict[str, Any]:
        return {"tool": "bash", "input": {"command": command}}

    def check(self) -> None:
        """Each command was called once, and what its result says of it is true."""
        events = self.chat.events()
        results = {e.tool_use_id: e for e in events if e.type == "agent.tool_result"}
        calls = [event for event in events if event.type == "agent.tool_use"]
        assert len(calls) == len(self.sent) * COMMANDS
        assert len(said(events)) == len(self.sent) + 1, said(
            events
        )  # the last asks what it remembers
        for call in calls:
            line = call.input["command"].split()[1]
            ran, told = self.ran.count(line), results[call.id].content[0].text
            assert ran == 1 or (ran == 0 and told == UNKNOWN), f"{line} ran {ran} times: {told}"


@pytest.mark.timeout(900)
def test_whatever_is_killed_the_loop_answers_every_message_and_runs_nothing_twice(tmp_path: Path):
    kill_at_random(tmp_path, 6, 2, kind=MessagesWorker)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_one_kind_of_victim_killed_a_hundred_times_neither_loses_nor_doubles_work_of_the_loop(
    tmp_path: Path, victim: str
):
    kill_at_random(tmp_path, 100, 4, [victim], kind=MessagesWorker)
