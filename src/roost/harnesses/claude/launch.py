"""How the CLI is started: where it is, its arguments, its settings and its environment.

It is told nothing by files of the workspace or the home (`--setting-sources=`): a project's hooks and
permission rules must not decide what an agent may do. The agent's `system` is added to the CLI's own
system prompt and does not replace it: that prompt explains the tools and the sandbox, and an agent that
runs in the CLI needs both. It travels in the first control request, since an argument has a length limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from roost.domain.session import Session
from roost.errors import RoostError
from roost.harnesses.claude.tools import BUILT_IN, Toolbox
from roost.harnesses.json_lines import Json
from roost.harnesses.permissions import SKILL, SUBAGENT
from roost.harnesses.questions import QUESTION
from roost.harnesses.stable_ids import StableIds
from roost.ports.harness import Confinement
from roost.ports.harness_profile import SKILLS

PINNED: Final = "2.1.325"
"""The CLI this code was tried with. It relies on variables that are documented nowhere."""

_CONFIG: Final = "/home/sandbox/.claude"
_GET_IT: Final = "Install claude-agent-sdk==0.2.182: it carries the CLI."
_EFFORTS = {"low", "medium", "high", "xhigh", "max"}
_NEVER = (
    "CronCreate",
    "ScheduleWakeup",
)  # they start turns by themselves, after the session sleeps
_ENVIRON: Final[Mapping[str, str]] = {
    "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
    # A background task would outlive the turn, and with it the lease.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS": "1",  # an agent has the skills it was given
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_RETRY_WATCHDOG": "1",  # waits out a long pause that the model asks for
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",  # a tool that has to be found first is one the agent is not given
    "CLAUDE_CODE_MAX_SUBAGENT_SPAWN_DEPTH": "1",  # as deep as the API's own threads
    "MCP_TOOL_TIMEOUT": "2147483647",  # a person may take days to answer a custom tool
}
_PLUGIN = SKILLS.removesuffix("/skills")  # the CLI looks for skills below a plugin's directory
GO_ON: Final[Mapping[str, str]] = {
    "CLAUDE_CODE_RESUME_INTERRUPTED_TURN": "1",
    "CLAUDE_CODE_RESUME_SHOWS_CUT_OFF_CALLS": "1",
}
"""A resumed CLI goes on with the turn that was cut off; a call that may have run counts as unknown."""


def bundled_cli() -> Path:
    """The CLI that comes with the `claude-agent-sdk` package.

    :raises RoostError: it is not there, or is not the one that is known to work
    """
    package = find_spec("claude_agent_sdk")
    places = list(package.submodule_search_locations or ()) if package else []
    cli = Path(places[0]) / "_bundled" / "claude" if places else None
    if cli is None or not cli.is_file():
        raise RoostError("the claude CLI is not installed", hint=_GET_IT)
    version = cli.with_name("claude.version").read_text().split()[0]
    if version != PINNED:
        raise RoostError(f"the claude CLI is {version}, not {PINNED}", hint=_GET_IT)
    return cli


class CliCommand:
    """What the CLI of one session is started with."""

    def __init__(
        self,
        command: str,
        session: Session,
        toolbox: Toolbox,
        environ: Mapping[str, str],
        bounds: Confinement | None = None,
        addresses: Mapping[str, str] = {},
    ) -> None:
        self._command = command
        self._agent = session.spec.agent
        self._toolbox = toolbox
        self._environ = environ
        self._conversation = StableIds.of(session).conversation
        self._bounds = bounds
        self._addresses = addresses
        # Named, all that the CLI keeps is in it, which a workspace can hide. It is the session's own even
        # with full trust, where `HOME` is the person's.
        self.home: Mapping[str, str] = {"CLAUDE_CONFIG_DIR": _CONFIG}

    def argv(self, *, resume: bool) -> list[str]:
        """The command line. No value of a client's stands where a flag could."""
        model = self._agent["model"]
        effort = (model.get("effort") or {}).get("type")
        return [
            self._command,
            "--output-format=stream-json",
            "--input-format=stream-json",
            "--verbose",
            "--include-partial-messages",
            "--permission-prompt-tool=stdio",
            "--setting-sources=",
            "--strict-mcp-config",
            f"--model={model['id']}",
            f"--tools={','.join(self._offered())}",
            f"--disallowedTools={','.join(_NEVER)}",
            f"--settings={json.dumps(self._settings())}",
            f"--mcp-config={json.dumps({'mcpServers': self._servers()})}",
            *([f"--plugin-dir={_PLUGIN}"] if self._toolbox.has_skills else []),
            *(["--forward-subagent-text"] if self._toolbox.has_subagents else []),
            *([f"--effort={effort}"] if effort in _EFFORTS else []),
            f"--{'resume' if resume else 'session-id'}={self._conversation}",
        ]

    def environ(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The variables the CLI needs besides what the sandbox gives to every process."""
        plain = self._toolbox.custom_names_are_free
        named = {"CLAUDE_AGENT_SDK_MCP_NO_PREFIX": "1"} if plain else {}
        # Subagents ask the agent's own model: the egress knows no other.
        model = {
            "CLAUDE_CODE_SUBAGENT_MODEL": self._agent["model"]["id"],
            "CLAUDE_CODE_SUBAGENT_MODEL_FORCE": "1",
        }
        return {
            **_ENVIRON,
            **named,
            **(model if self._toolbox.has_subagents else {}),
            **self.home,
            **self._environ,
            **extra,
        }

    def introduction(self) -> Json:
        """The fields of the first control request. The prompt is the agent's as it is now: by itself
        the CLI would keep to the one that the conversation began with.
        """
        system = self._agent.get("system")
        said = {"appendSystemPrompt": system} if system else {}
        return {"hooks": None, "systemPromptSnapshot": False, **said}

    def _offered(self) -> list[str]:
        asks = [QUESTION] if self._toolbox.asks_questions else []
        skills = [SKILL] if self._toolbox.has_skills else []
        starts = [SUBAGENT] if self._toolbox.has_subagents else []
        return [BUILT_IN[name] for name in self._toolbox.built_in] + asks + skills + starts

    def _settings(self) -> Json:
        servers = [f"mcp__{name}" for name in self._servers()]
        return {
            "permissions": {
                "ask": [*BUILT_IN.values(), SKILL, SUBAGENT, *servers],
                "deny": self._never_read(),
            },
            "disableSkillShellExecution": True,  # commands in its text would run without a call
            "skillOverrides": {"plugin-authoring": "off"},  # the one that is not bundled, yet there
            "skipWebFetchPreflight": True,  # it would ask a host that a sandbox cannot reach
        }

    def _never_read(self) -> list[str]:
        """What a search below the root has to leave out: it is asked for as a whole, and allowed."""
        if self._bounds is None:
            return []
        hidden = [path.relative_to(self._bounds.root) for path in self._bounds.hidden]
        return [f"Read(./{path}/**)" for path in hidden]

    def _servers(self) -> Json:
        servers: Json = {name: self._server(url) for name, url in self._toolbox.servers.items()}
        if self._toolbox.custom:
            own = self._toolbox.custom_server
            servers[own] = {"type": "sdk", "name": own}
        return servers

    def _server(self, url: str) -> Json:
        """An MCP server. With a header of ours the CLI does not try to sign in by itself, which would need a
        person, and would make it pass over the server in later starts.
        """
        local = self._addresses.get(url)
        if local is None:
            return {"type": "http", "url": url}
        return {"type": "http", "url": local, "headers": {"Authorization": "Bearer placeholder"}}
