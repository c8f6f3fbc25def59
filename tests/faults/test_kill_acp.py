"""The agent, its sandbox or the whole server is killed while an agent works that speaks the Agent Client Protocol.

As with Claude Code, no command runs twice. What an agent has not written down it is told, so it may remember some of
the messages only by a note.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill_claude import VICTIMS, Worker, kill_at_random
from tests.harnesses.acp_agents import agents_file, claude_agent_acp, opencode

from roost.sandboxes import procfs


class AcpWorker(Worker):
    """A session with such an agent. Nothing in its command line says whose it is: its mounts do."""

    counts_messages = False

    def name_of(self, session_id: str) -> str:
        return session_id

    def processes(self) -> list[int]:
        """What is in the sandbox, and the sandbox itself, which is outside of its own mounts."""
        inside = {seen.pid for seen in procfs.everything() if self._has_mounted(seen.pid)}
        own = procfs.children(self.server.pid)
        around = {pid for pid in own if inside & {s.pid for s in procfs.descendants([pid])}}
        return sorted(inside | around)

    def _has_mounted(self, pid: int) -> bool:
        try:
            return self._name in Path(f"/proc/{pid}/mountinfo").read_bytes()
        except OSError:
            return False  # it is gone


class ClaudeAcpWorker(AcpWorker):
    harness = "claude-acp"
    program = "/opt/node"

    @staticmethod
    def settings(url: str, folder: Path) -> dict[str, str]:
        agents = agents_file(folder, **{"claude-acp": claude_agent_acp().agent})
        return {"ANTHROPIC_BASE_URL": url, **agents}


class OpencodeWorker(AcpWorker):
    harness = "opencode"
    program = "/opt/opencode/bin/opencode"

    @staticmethod
    def settings(url: str, folder: Path) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": url, **agents_file(folder, opencode=opencode().agent)}

    def runs(self, command: str) -> dict[str, Any]:
        return {"tool": "bash", "input": {"command": command, "description": "Runs it"}}


@pytest.mark.timeout(900)
def test_whatever_is_killed_an_acp_agent_answers_every_message_and_runs_nothing_twice(
    tmp_path: Path,
):
    kill_at_random(tmp_path, 3, 2, kind=ClaudeAcpWorker)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [ClaudeAcpWorker, OpencodeWorker])
@pytest.mark.parametrize("victim", VICTIMS)
def test_one_kind_of_victim_killed_thirty_times_neither_loses_nor_doubles_work_of_an_acp_agent(
    tmp_path: Path, victim: str, kind: type[Worker]
):
    kill_at_random(tmp_path, 30, 3, [victim], kind=kind)
