"""The harness that drives the real `claude` CLI in a session's sandbox. Where to read on:

* `conversation` takes the turns, over as many processes of the CLI as it needs, and has the table of its
  states; `process` is one of them; `launch` has their arguments and environment;
* `wire` has the pipes and the shapes of what travels in them, `frames` what the log is told of that;
* `tools`, `calls`: what the agent may use, and what waits for an answer. The CLI is told to ask before every
  call, so a call runs only after its event is in the log: a crash can leave one whose outcome is unknown, but
  never one that nobody has heard of. Who decides is in `harnesses/permissions`;
* `transcript`, `recovery`: how it goes on after a crash of anything;
* `content`, `ids`: what both sides call content blocks and events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from roost.errors import RoostError
from roost.harnesses import HarnessContext
from roost.harnesses.claude.conversation import ClaudeConversation
from roost.harnesses.claude.launch import PINNED, CliCommand, bundled_cli
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.in_sandbox import opened
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.sandbox_provider import Mount

INSIDE: Final = "/run/roost/claude"
"""Where a sandbox shows the CLI."""


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
    upstream="anthropic",
    own_directories=frozenset({".claude"}),
)


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harness as a server runs it: see `roost.harnesses`."""
    return [ClaudeHarness(retries=context.settings.model_retries)]


class ClaudeHarness:
    """The `claude` CLI.

    `cli` is the program on this machine, by default the one in the `claude-agent-sdk` package.
    `mounted`: sandboxes are given `mounts` and show it at `INSIDE`; without, they run it where it is.
    `environ` says how the model is reached, where the sandbox's own environment does not.
    `retries` is how often a failed model request is repeated.
    """

    name = "claude"
    profile = PROFILE

    def __init__(
        self,
        cli: Path | None = None,
        *,
        mounted: bool = True,
        environ: Mapping[str, str] | None = None,
        retries: int = 10,
    ) -> None:
        self._cli = cli
        self._mounted = mounted
        self._environ = {"CLAUDE_CODE_MAX_RETRIES": str(retries), **(environ or {})}

    @property
    def mounts(self) -> Sequence[Mount]:
        return [Mount(self._program(), INSIDE)] if self._mounted else []

    def check(self) -> str:
        if self._cli is None:
            bundled_cli()
        return PINNED

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        """The agent's own model, its dated editions, and what the CLI makes of a short name such as `opus`."""
        own = agent["model"]["id"].partition("[")[0]  # `[1m]` is for the CLI alone
        return [] if "*" in own else [own, f"{own}-2*", f"claude-{own}-*"]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None:
            raise RoostError("the claude harness needs a sandbox, and was given none")
        toolbox = Toolbox(brief.session.spec.agent, confined=brief.confinement is not None)
        command = INSIDE if self._mounted else str(self._program())
        launch = CliCommand(
            command, brief.session, toolbox, self._environ, brief.confinement, brief.addresses
        )
        make = partial(ClaudeConversation, brief, brief.sandbox, launch, toolbox)
        async with opened(brief, make) as conversation:
            yield conversation

    def _program(self) -> Path:
        """The CLI to use: the one that was given, or the bundled one.

        :raises RoostError: there is no CLI, or not the one that is known to work
        """
        return self._cli or bundled_cli()
