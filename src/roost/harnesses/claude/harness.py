"""The harness that drives the real `claude` CLI in a session's sandbox. Where to read on:

* `conversation` takes the turns, over as many processes of the CLI as it needs; `live` is one of them;
* `wire` has the lines and frames, `shapes` what is looked at in them, `frames` what the log is told;
* `tools`, `permissions`, `calls`: what the agent may use, who decides, and what waits for an answer;
* `past`, `transcript`, `recovery`: how it goes on after a crash of anything;
* `launch`: arguments and environment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from roost.errors import RoostError
from roost.harnesses.claude.conversation import ClaudeConversation
from roost.harnesses.claude.launch import Launch, bundled_cli
from roost.harnesses.claude.tools import Toolbox
from roost.ports.harness import Brief, Conversation
from roost.ports.sandbox import Mount

INSIDE: Final = "/run/roost/claude"
"""Where a sandbox shows the CLI."""


class ClaudeHarness:
    """The `claude` CLI.

    `cli` is the program on this machine, by default the one in the `claude-agent-sdk` package.
    `mounted`: sandboxes are given `mounts` and show it at `INSIDE`; without, they run it where it is.
    `environ` says how the model is reached, where the sandbox's own environment does not.
    `retries` is how often a failed model request is repeated.

    :raises RoostError: there is no CLI, or not the one that is known to work
    """

    name = "claude"

    def __init__(
        self,
        cli: Path | None = None,
        *,
        mounted: bool = True,
        environ: Mapping[str, str] | None = None,
        retries: int = 10,
    ) -> None:
        found = cli or bundled_cli()
        self._command = INSIDE if mounted else str(found)
        self._environ = {"CLAUDE_CODE_MAX_RETRIES": str(retries), **(environ or {})}
        self.mounts: Sequence[Mount] | None = [Mount(found, INSIDE)] if mounted else []

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None:
            raise RoostError("the claude harness needs a sandbox, and was given none")
        toolbox = Toolbox(brief.session.spec.agent, kept_in=brief.bounds is not None)
        launch = Launch(self._command, brief.session, toolbox, self._environ, brief.bounds)
        try:
            async with anyio.create_task_group() as tasks:
                conversation = ClaudeConversation(brief, brief.sandbox, launch, toolbox, tasks)
                if brief.ahead:
                    await tasks.start(conversation.start_ahead)
                try:
                    yield conversation
                finally:
                    with anyio.CancelScope(shield=True):
                        await conversation.close()
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # callers look for their own errors, not for groups
            raise group.exceptions[0] from None
