"""The harness that drives the real Codex in a session's sandbox. Where to read on:

* `conversation` takes the turns, over as many processes of Codex as it needs; `process` is one of them, and
  `subagents` what its agent starts;
  `launch` has their command line and settings, `seed` what each of them begins with, `documents` what becomes of
  documents in messages;
* `wire` has the pipe, `answers` what the log is told of an answer of the model;
* `tools` are the tools in the words of both sides; `history` is the log as a new process is told it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from roost.errors import RoostError
from roost.harnesses import HarnessContext
from roost.harnesses.codex.conversation import CodexConversation
from roost.harnesses.codex.launch import PINNED, PLAIN_MODELS, CodexCommand, bundled_program
from roost.harnesses.codex.seed import CodexSeed
from roost.harnesses.codex.tools import CodexTools
from roost.harnesses.in_sandbox import opened
from roost.harnesses.permissions import Policy
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.sandbox_provider import Mount

INSIDE: Final = "/run/roost/codex"
"""Where a sandbox shows the directory of the program."""

_SEED_INSIDE: Final = "/run/roost/codex-seed"

PROFILE: Final = HarnessProfile(
    abilities=Abilities(
        approvals=True,
        questions=True,
        custom_tools=True,
        skills=True,
        mcp=True,
        files=True,
        images=True,
        subagents=True,
        interrupts=True,
        deltas=True,
        effort=True,
        budget=True,
        prestart=True,
        fork=True,
        rewind=True,
        retries=True,
    ),
    needs_sandbox=True,
    upstream="openai",
    only_sandboxed=True,
    reads_log=True,
    own_directories=frozenset({".codex"}),
)


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harness as a server runs it: see `roost.harnesses`."""
    settings = context.settings
    return [CodexHarness(retries=settings.model_retries, seeds=settings.data / "codex")]


class CodexHarness:
    """The `codex` program.

    `program` is its directory on this machine, by default the one in its package. `mounted`: sandboxes are given
    `mounts` and show it at `INSIDE`; without, they run it where it is, and have no seed. `environ` says how the model is reached,
    where the sandbox's own environment does not. `retries` is how often a failed model request is repeated. `seeds` is
    where what all of its processes begin with is kept.
    """

    name = "codex"
    profile = PROFILE

    def __init__(
        self,
        program: Path | None = None,
        *,
        seeds: Path,
        mounted: bool = True,
        environ: Mapping[str, str] | None = None,
        retries: int = 10,
    ) -> None:
        self._program = program
        self._mounted = mounted
        self._environ = environ or {}
        self._retries = retries
        self._seed = CodexSeed(PINNED, PLAIN_MODELS, seeds)

    @property
    def mounts(self) -> Sequence[Mount]:
        if not self._mounted:
            return []
        seed = self._seed.path
        made = [Mount(seed, _SEED_INSIDE)] if seed.is_dir() else []
        return [Mount(self._directory(), INSIDE), *made]

    def check(self) -> str:
        if self._program is None:
            bundled_program()
        return PINNED

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        """The agent's own model, and its dated editions."""
        own = agent["model"]["id"]
        return [] if "*" in own else [own, f"{own}-2*"]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None:
            raise RoostError("the codex harness needs a sandbox, and was given none")
        if brief.session.spec.trust_level != "sandboxed":
            raise RoostError(
                f"the codex harness runs in a sandbox only, not with the trust level "
                f"{brief.session.spec.trust_level!r}",
                hint="Begin a session with the trust level `sandboxed`, or with the harness `claude`.",
            )
        agent = brief.session.spec.agent
        tools = CodexTools(agent, Policy(agent))
        directory = INSIDE if self._mounted else str(self._directory())
        command = CodexCommand(
            f"{directory}/bin/codex",
            brief.session,
            tools,
            self._environ,
            brief.addresses,
            self._retries,
            _SEED_INSIDE,
        )
        make = partial(CodexConversation, brief, brief.sandbox, command, tools)

        def begun(tasks: TaskGroup) -> CodexConversation:
            if self._mounted:
                tasks.start_soon(self._make_seed)
            return make(tasks)

        async with opened(brief, begun) as conversation:
            yield conversation

    async def _make_seed(self) -> None:
        """Beside the first conversation, for the sandboxes of later ones."""
        make = partial(self._seed.make, self._directory())
        await anyio.to_thread.run_sync(make, abandon_on_cancel=True)

    def _directory(self) -> Path:
        """The program's directory. :raises RoostError: it is not there, or not the one that is known to work"""
        return self._program or bundled_program()
