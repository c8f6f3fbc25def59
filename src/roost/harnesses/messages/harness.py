"""The harness that is a loop of our own on the Messages API, for agents that need no program. Where to read on:

* `conversation` asks the model, makes the calls it wants, and asks again;
* `journal` is where a conversation stands by its log, and what became of a call that was cut off;
* `answers` makes events of an answer, `request` the bytes of a request;
* `tools` is what an agent may use, `running` makes its calls: `guest` in the sandbox, `mcp` at servers;
* `network` is how requests leave: by the session's own egress.

There is no process, and no sandbox until a tool needs one. What it keeps is in the log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from roost import __version__
from roost.errors import RoostError
from roost.harnesses import HarnessContext
from roost.harnesses.messages.conversation import MessagesConversation
from roost.harnesses.messages.guest import MOUNTS, GuestTools
from roost.harnesses.messages.mcp import McpClient
from roost.harnesses.messages.network import session_client
from roost.harnesses.messages.running import RunningTools
from roost.harnesses.messages.tools import AgentTools
from roost.harnesses.messages.window import USUAL, ModelWindow
from roost.harnesses.messages_api import MessagesApi
from roost.harnesses.model_requests import ModelRequests
from roost.ports.egress import Origin
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.harness_profile import Abilities, HarnessProfile

PROFILE: Final = HarnessProfile(
    abilities=Abilities(
        approvals=True,
        questions=True,
        custom_tools=True,
        skills=True,
        mcp=True,
        files=True,
        images=True,
        interrupts=True,
        deltas=True,
        effort=True,
        budget=True,
        fork=True,
        rewind=True,
        retries=True,
    ),
    needs_sandbox=True,
    on_demand=True,
    reads_log=True,
    upstream="anthropic",
    upstream_tools=frozenset({"web_search"}),
    by_workers=True,
)


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harness as a server runs it: see `roost.harnesses`."""
    settings = context.settings
    return [MessagesHarness(retries=settings.model_retries, retry_seconds=settings.retry_seconds)]


class MessagesHarness:
    """A failed request is repeated up to `retries` times, first after `retry_seconds`."""

    name = "messages"
    profile = PROFILE
    mounts = MOUNTS

    def __init__(self, *, retries: int, retry_seconds: float) -> None:
        self._retries = retries
        self._retry_seconds = retry_seconds

    def check(self) -> str:
        return __version__

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        own = agent["model"]["id"]
        return [] if "*" in own else [own]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        if brief.sandbox is None or brief.grant is None:
            raise RoostError(
                "the messages harness needs a sandbox and an egress, and was given none"
            )
        agent = brief.session.spec.agent
        toolbox = AgentTools(
            agent,
            confined=brief.confinement is not None,
            searches=brief.grant.web_search,
            self_hosted=brief.session.spec.self_hosted,
        )
        try:
            async with (
                session_client(brief.grant) as client,
                anyio.create_task_group() as tasks,
            ):
                model = Origin(url=brief.grant.environ["ANTHROPIC_BASE_URL"], protocol="anthropic")
                api = await MessagesApi.at(model, client)
                requests = ModelRequests(api, self._retries, self._retry_seconds)
                servers = {
                    name: McpClient(client, brief.addresses[url], tasks)
                    for name, url in toolbox.servers.items()
                    if url in brief.addresses and brief.session.spec.trust_level == "sandboxed"
                }
                guest = GuestTools(brief.session.id, brief.sandbox, tasks, brief.confinement)
                tools = RunningTools(guest, servers)
                try:
                    window = ModelWindow(brief.grant.window or USUAL)
                    yield MessagesConversation(brief, requests, toolbox, tools, tasks, window)
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # callers look for their own errors, not for groups
            raise group.exceptions[0] from None
