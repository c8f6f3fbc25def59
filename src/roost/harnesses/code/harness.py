"""The harness that runs code. Where to read on:

* `conversation` runs what it is sent, piece by piece, and tells what came of it;
* `interpreter` is the other end of `roost/guest/interpreter.py`, which does so in the sandbox.

It asks no model, and its sandbox has none. What its interpreter knows is in that process alone: files are kept as
those of any session, variables end with it, and the next answer says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import roost
from roost import __version__
from roost.errors import RoostError
from roost.harnesses import HarnessContext
from roost.harnesses.code.conversation import CodeConversation
from roost.harnesses.code.interpreter import INSIDE
from roost.harnesses.in_sandbox import opened
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.sandbox_provider import Mount

PROFILE: Final = HarnessProfile(
    abilities=Abilities(interrupts=True, prestart=True),
    needs_sandbox=True,
    upstream="",
    runs_tools=False,
    only_sandboxed=True,
    stays=True,
    workspace_at="/mnt/data",
)
_PROGRAM: Final = Path(roost.__file__).parent / "guest" / "interpreter.py"


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harness as a server runs it: see `roost.harnesses`."""
    return [CodeHarness()]


class CodeHarness:
    """Runs code. A sandbox of its sessions shows the workspace at `/mnt/data`, too, where code that was written for
    other pools looks for files.
    """

    name = "code"
    profile = PROFILE
    mounts = (Mount(_PROGRAM, INSIDE),)

    def check(self) -> str:
        return __version__

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        return []

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None:
            raise RoostError("the code harness needs a sandbox, and was given none")
        async with opened(brief, partial(CodeConversation, brief, brief.sandbox)) as conversation:
            await conversation.start()
            yield conversation
