"""A harness with a sandbox of its own for each session: what the runner gives it, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.host import HostProvider


class SandboxedHarness:
    """Opens a place before each conversation. A session that was not resumed gets a new home."""

    def __init__(
        self, harness: Harness, root: Path, mark: bytes = b"--input-format=stream-json"
    ) -> None:
        self.name = harness.name
        self.profile = harness.profile
        self.mounts = harness.mounts
        self.check = harness.check
        self.models = harness.models
        self.home = root
        self._harness = harness
        self._root = root
        self._numbers = count(1)
        self._mark = mark  # an argument that only the agent's own program has
        self._provider = HostProvider(use_cgroups=False)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        number = next(self._numbers)
        if not brief.start.resumes:
            self.home = self._root / f"home-{number}"
            self.workspace.mkdir(parents=True)
        plan = Plan(
            session_id=str(self.home),
            generation=number,
            home=LocalVolume(self.home),
            workspace=LocalVolume(self.workspace),
        )
        async with (
            self._provider.open(plan) as sandbox,
            self._harness.open(replace(brief, sandbox=sandbox)) as conversation,
        ):
            yield conversation

    @property
    def workspace(self) -> Path:
        """Where the session's files are."""
        return self.home / "work"

    @property
    def transcript(self) -> Path:
        """The CLI's own record of the session."""
        (found,) = (self.home / ".claude" / "projects").glob("*/*.jsonl")
        return found

    def kill_agent(self) -> None:
        """SIGKILL to the CLI and all it has started: no goodbye."""
        for pid in self._agents():
            os.killpg(pid, signal.SIGKILL)

    def _agents(self) -> Iterator[int]:
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                environ = (proc / "environ").read_bytes().split(b"\0")
                command = (proc / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = f"HOME={self.home}".encode() in environ
            if ours and self._mark in command and os.getsid(int(proc.name)) == int(proc.name):
                yield int(proc.name)
