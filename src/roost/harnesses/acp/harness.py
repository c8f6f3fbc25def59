"""The harness for agents that speak the Agent Client Protocol, in a session's sandbox. Where to read on:

* `agents` reads which agents there are: a name and a command each, in the operator's file;
* `conversation` takes the turns, `process` is one process of the agent, `wire` what travels to it and from it;
* `updates` is what the log is told of that, `calls` what becomes of tool calls;
* `recovery`: how it goes on after a crash of anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from roost.errors import RoostError
from roost.harnesses import HarnessContext
from roost.harnesses.acp.agents import AcpAgent, agents_of
from roost.harnesses.acp.conversation import AcpConversation
from roost.harnesses.in_sandbox import opened
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.harness_profile import HarnessProfile
from roost.ports.sandbox_provider import Mount


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harnesses as a server runs them, one for each agent of the file: see `roost.harnesses`."""
    found = agents_of(context.settings.agents)
    return [AcpHarness(name, agent) for name, agent in found.items()]


class AcpHarness:
    """One agent of the operator's."""

    def __init__(self, name: str, agent: AcpAgent) -> None:
        self.name = name
        self.agent = agent

    @property
    def profile(self) -> HarnessProfile:
        return self.agent.profile

    @property
    def mounts(self) -> Sequence[Mount]:
        return self.agent.shown

    def check(self) -> str:
        return self.agent.check()

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        own = agent["model"]["id"]
        return [] if "*" in own else [own]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None:
            raise RoostError(f"the {self.name} harness needs a sandbox, and was given none")
        if brief.session.spec.trust_level != "sandboxed":
            raise RoostError(
                f"the {self.name} harness runs in a sandbox only, not with the trust level "
                f"{brief.session.spec.trust_level!r}",
                hint="Begin a session with the trust level `sandboxed`, or with the harness `claude`.",
            )
        agent = self.agent.for_model(brief.session.spec.agent["model"]["id"])
        make = partial(AcpConversation, self.name, brief, brief.sandbox, agent)
        async with opened(brief, make) as conversation:
            yield conversation
