"""What a harness declares of itself: the model API it speaks, and what its agents can do.

The API refuses by it what a session asks for in vain, the docs list it, and `roost.testing.harness_contract`
holds a harness to it.
"""

from __future__ import annotations

from typing import Final

import msgspec

SKILLS: Final = "/run/roost/agent/skills"
"""Where a sandbox shows the agent's skills, each in a directory of its name, read-only."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a harness can do. Each yes is a promise, proved by
    `roost.testing.harness_contract` where a kit can prove it.
    """

    approvals: bool = False
    """A person is asked before a tool runs, where the agent's permission policy says so."""
    questions: bool = False
    """The agent can put a question to a person, as a custom tool call that a client answers."""
    custom_tools: bool = False
    """The agent can call tools that a client carries out."""
    skills: bool = False
    """The agent finds the skills that are shown at `SKILLS`."""
    mcp: bool = False
    """The agent can use the MCP servers of its definition."""
    files: bool = False
    """The agent can read documents that are part of a message."""
    images: bool = False
    """The agent can see images that are part of a message."""
    subagents: bool = False
    """The agent can start agents of its own, whose events say who they are from."""
    interrupts: bool = False
    """A running turn can be stopped, and the conversation goes on after it."""
    deltas: bool = False
    """Text is shown while the model writes it."""
    effort: bool = False
    """The effort that the agent's definition names is passed on to the model."""
    budget: bool = False
    """All its model requests go through the egress of its sandbox, so that they are counted."""
    prestart: bool = False
    """Its program can be started before there is anything to tell it."""
    fork: bool = False
    """A session can begin with the past of another one, as of any of its turns."""
    rewind: bool = False
    """A session can go back to any of its turns."""
    retries: bool = False
    """A model request that failed and is made again is told, and the session is `rescheduling` meanwhile."""


class HarnessProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a harness declares of itself, whether or not its program is installed here.

    `needs_sandbox`: its program lives in a sandbox, which is opened before a conversation; without, a
    session has no files and nothing is started for it. `on_demand`: its sandbox is opened by the first command
    that is spawned in it, and what it keeps is in the log alone; it asks the model itself, by `Brief.grant`.
    `reads_log`: its agents are told the past from the log, and not from a record of their own.
    `upstream` names the model API that it speaks, as `ports.egress.Grant` does; "": it asks no model, and its sandbox
    has none. `stays`: what its program knows is nowhere else, so it is not ended because its session is idle for long,
    only where its memory is needed. `model_port`: its program
    cannot connect to a unix socket, so the model has to be at a port of the sandbox's loopback. `runs_tools`: its
    agents have the tools of the API's agent toolset; without, there is nothing that a person could be asked about.
    `upstream_tools` are those of them that the model's server runs, unasked; not every server does.
    `fixed_tools`: none of those tools can be switched off. `only_sandboxed`: on the host, its program would not
    find its model.
    `by_workers`: on a self-hosted environment its tools are run by workers.
    `workspace_at` is a second path at which its sandbox shows the workspace.
    `own_directories` are the directories in a session's home that belong to the program itself: its transcript and
    its settings. They are hidden where the home is also the workspace.
    """

    abilities: Abilities
    needs_sandbox: bool
    upstream: str
    on_demand: bool = False
    reads_log: bool = False
    stays: bool = False
    runs_tools: bool = True
    fixed_tools: bool = False
    only_sandboxed: bool = False
    model_port: bool = False
    upstream_tools: frozenset[str] = frozenset()
    by_workers: bool = False
    workspace_at: str = ""
    own_directories: frozenset[str] = frozenset()

    @property
    def goes_back(self) -> bool:
        """Whether its sessions can go on from an earlier turn, so that the files of each are worth to be kept."""
        return self.abilities.fork or self.abilities.rewind
