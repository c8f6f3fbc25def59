"""How Codex is started: where it is, its settings and its environment.

It runs as `codex app-server`, and is told everything by flags: the directory that would have its own settings,
rules and records is emptied first, so that nothing in a session's files decides what its agent may do. It keeps
no record of a conversation either (`ephemeral`). Its own sandbox is off, because it is in one; it asks before
each command and each change of a file (`untrusted`), and is answered by the agent's permission policy.

The agent's `system` is given as instructions of the developer, beside Codex's own.

Codex has a catalog of models, which says what each is offered: most are given one tool only, which runs programs that
call the others, and tools to start agents of their own, whatever the settings say. Then nobody could be asked about a
call before it is made, nor could the log say which were. So Codex gets its own catalog with that taken out, and with it
the databases that it would make at each start (`seed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from roost.domain.session import Session
from roost.errors import RoostError
from roost.harnesses.codex.documents import DIRECTORY
from roost.harnesses.codex.tools import CodexTools
from roost.harnesses.json_lines import Json
from roost.ports.harness_profile import SKILLS

PINNED: Final = "0.163.0"
"""The Codex this code was tried with. It relies on parts of the protocol that are called experimental."""

_PACKAGE: Final = "openai-codex-cli-bin"
_GET_IT: Final = f"Install roost[codex], or {_PACKAGE}=={PINNED}: it carries the program."
_HOME: Final = "/home/sandbox/.codex"
_SLOWEST_TOOL: Final = 3600  # seconds, of an MCP server
_SLOWEST_START: Final = 30  # seconds, of one that is connected to; Codex gives it 10 by itself
_EFFORTS: Final = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "xhigh",
}
# The address of the model is in the sandbox's environment. What Codex keeps besides is nothing that a session
# has to have: it is put where nothing is stored, and what an earlier start has left there goes, but for documents
# that the agent was told of. In a container its home is a mount point, which itself stays. A seed is one only if the
# sandbox was given it: an agent could make such a directory, with a catalog by which nobody is asked.
_START: Final = """
path=$PATH
PATH=/usr/bin:/bin:$PATH
[ -d "$CODEX_HOME" ] && [ ! -L "$CODEX_HOME" ] || rm -rf "$CODEX_HOME"
for left in "$CODEX_HOME"/* "$CODEX_HOME"/.[!.]* "$CODEX_HOME"/..?* "${TMPDIR:-/tmp}/codex-$1".*; do
    [ "$left" = "$CODEX_HOME/$3" ] || { [ ! -e "$left" ] && [ ! -L "$left" ]; } || rm -rf "$left"
done
state="${TMPDIR:-/tmp}/codex-$1.$$"
mkdir -p "$CODEX_HOME" && ln -s "$2" "$CODEX_HOME/skills" && mkdir -m 700 "$state" || exit 1
if grep -q " $4 ro[, ]" /proc/self/mountinfo; then
    models="$4/models.json"
    cp "$4"/*.sqlite "$state" || exit 1
else
    models="$state/models.json"
    "$0" debug models --bundled | sed -E "$5" >"$models"
fi
shift 5
PATH=$path
exec "$0" app-server "$@" -c "sqlite_home=\\"$state\\"" -c "model_catalog_json=\\"$models\\"" \\
    -c "model_providers.roost.base_url=\\"$OPENAI_BASE_URL\\""
"""
PLAIN_MODELS: Final = ";".join(
    (  # for `sed`, of the catalog of models
        r's/"tool_mode":"[a-z_]*"/"tool_mode":null/g',
        r's/"multi_agent_version":"[a-z0-9]*"/"multi_agent_version":"disabled"/g',
        r's/"experimental_supported_tools":\[[^]]*\]/"experimental_supported_tools":[]/g',
        # A tool that has to be found first is one the agent is not given.
        r's/"supports_search_tool":true/"supports_search_tool":false/g',
    )
)
_OFF: Final = (  # they look up hosts, start agents, or change what an agent is told
    *("apps", "plugins", "hooks", "multi_agent", "multi_agent_v2", "goals", "memories"),
    *("image_generation", "tool_suggest", "skill_search", "sleep_tool", "code_mode_host"),
    *("shell_snapshot", "unbounded_connection_retries"),
    "enable_request_compression",  # the egress reads requests
)


def bundled_program() -> Path:
    """The directory with the Codex that comes with its package.

    :raises RoostError: it is not there, or is not the one that is known to work
    """
    package = find_spec("codex_cli_bin")
    places = list(package.submodule_search_locations or ()) if package else []
    if not places or not (Path(places[0]) / "bin" / "codex").is_file():
        raise RoostError("Codex is not installed", hint=_GET_IT)
    about = msgspec.json.decode((Path(places[0]) / "codex-package.json").read_bytes())
    if about["version"] != PINNED:
        raise RoostError(f"Codex is {about['version']}, not {PINNED}", hint=_GET_IT)
    return Path(places[0])


class CodexCommand:
    """What the Codex of one session is started with; `retries`: how often a failed model request is repeated.

    `seed` is where the sandbox shows one, if it does.
    """

    def __init__(
        self,
        program: str,
        session: Session,
        tools: CodexTools,
        environ: Mapping[str, str],
        addresses: Mapping[str, str],
        retries: int,
        seed: str,
    ) -> None:
        self._program = program
        self._seed = seed
        self._session = session
        self._agent = session.spec.agent
        self._tools = tools
        self._environ = environ
        self._addresses = addresses
        self._retries = retries

    def argv(self) -> list[str]:
        """The command line. Of a client's values only addresses of MCP servers are in it, quoted."""
        flags = [part for setting in self._settings() for part in ("-c", setting)]
        skills = SKILLS if self._tools.has_skills else "/nonexistent"
        given = [self._session.id, skills, DIRECTORY, self._seed, PLAIN_MODELS]
        return ["/bin/sh", "-c", _START, self._program, *given, *flags]

    def environ(self) -> dict[str, str]:
        """The variables that Codex needs besides what the sandbox gives to every process."""
        return {"CODEX_HOME": _HOME, **self._environ}

    def thread(self, *, of_subagent: bool = False) -> Json:
        """How a conversation is started: the agent's own, or that of a subagent."""
        system = self._agent.get("system")
        return {
            "model": self._agent["model"]["id"],
            "approvalPolicy": "untrusted",
            "sandbox": "danger-full-access",
            "ephemeral": True,
            "experimentalRawEvents": True,
            "dynamicTools": self._tools.declared(subagents=not of_subagent),
            **({"developerInstructions": system} if system else {}),
        }

    def turn(self) -> Json:
        """What a turn is started with, besides what is said in it."""
        effort = (self._agent["model"].get("effort") or {}).get("type")
        return {"effort": _EFFORTS[effort]} if effort in _EFFORTS else {}

    def _settings(self) -> Sequence[str]:
        provider = {
            "name": "roost",
            "wire_api": "responses",
            "env_key": "OPENAI_API_KEY",
            "request_max_retries": 0,  # those are silent
            "stream_max_retries": self._retries,
        }
        features = dict.fromkeys(_OFF, False) | {
            "shell_tool": self._tools.has_shell,
            "view_image": self._tools.has_pictures,
            "default_mode_request_user_input": self._tools.asks_questions,
        }
        settings: Json = {
            "model_provider": "roost",
            **{f"model_providers.roost.{name}": value for name, value in provider.items()},
            **{f"features.{name}": value for name, value in features.items()},
            "web_search": "live" if self._tools.searches else "disabled",
            "analytics.enabled": False,
            "check_for_update_on_startup": False,
            "skills.bundled.enabled": False,
            "suppress_unstable_features_warning": True,
        }
        for name, server in self._tools.servers.items():
            settings |= {
                f"mcp_servers.{name}.{field}": value
                for field, value in self._server(server["url"]).items()
            }
        return [f"{name}={json.dumps(value)}" for name, value in settings.items()]

    def _server(self, url: str) -> Json:
        """An MCP server. It has no say in whether Codex asks before a tool of its runs."""
        local = self._addresses.get(url)
        settings: Json = {"url": local or url, "default_tools_approval_mode": "prompt"}
        settings |= {"startup_timeout_sec": _SLOWEST_START}
        token = {"http_headers.Authorization": "Bearer placeholder"}
        return {**settings, "tool_timeout_sec": _SLOWEST_TOOL, **(token if local else {})}
