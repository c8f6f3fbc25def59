"""Agents that speak the Agent Client Protocol: through Roost, in their sandboxes, beside the bare programs in the same run.

    python bench/acp.py [--quick] [claude-acp | opencode]...

Run it alone; `make test` gets the two programs. `_race.py` says what is measured. The bare one has the same settings, as
an editor would keep it; it loads its own record of the conversation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _race import LIVE, NEW, WOKEN, Model, race, serving, weigh, weigh_bare

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.harnesses.acp_agents import agents_file, claude_agent_acp, opencode

from roost.harnesses.acp import AcpAgent

AGENTS = {"claude-acp": claude_agent_acp, "opencode": opencode}
EACH = 500  # mebibytes: about what a live session takes
MODEL = "claude-opus-5-5"
INSIDE = "http://127.0.0.1:8701"  # where a sandbox has its model


class Bare:
    """The program by itself, with one conversation."""

    def __init__(self, home: Path, url: str, agent: AcpAgent) -> None:
        home.mkdir(parents=True, exist_ok=True)
        own = agent.for_model(MODEL)
        inside = {mount.target: str(mount.source) for mount in own.shown}
        inside |= {"/home/sandbox": str(home), INSIDE: url}

        def outside(text: str) -> str:
            for target, source in inside.items():
                text = text.replace(target, source)
            return text

        self._home = home
        self._meta = {"_meta": agent.meta} if agent.meta else {}
        self._command = [outside(word) for word in own.command]
        self._environ = {
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "placeholder",
            **{name: outside(value) for name, value in own.environ.items()},
        }
        self._session = ""
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, resume: bool) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            cwd=self._home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._ask("initialize", protocolVersion=1, clientCapabilities={})
        self._answer()
        place = {"cwd": str(self._home), "mcpServers": [], **self._meta}
        if resume:
            self._ask("session/load", sessionId=self._session, **place)
            self._answer()
        else:
            self._ask("session/new", **place)
            self._session = self._answer()["sessionId"]
        self.say()

    def say(self) -> None:
        said = [{"type": "text", "text": "Hello"}]
        self._ask("session/prompt", sessionId=self._session, prompt=said)

    def wait_until_done(self) -> None:
        self._answer()

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate()

    def _ask(self, method: str, **params: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._number += 1
        frame = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(frame).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        """What the newest request has come to."""
        assert self._process is not None and self._process.stdout is not None
        while line := self._process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError("the agent ended")


def measure(name: str, *, quick: bool) -> None:
    agent, model = AGENTS[name]().agent, Model()
    with tempfile.TemporaryDirectory(prefix="acp-") as found, serving(model) as url:
        folder = Path(found)
        environ = {
            "ANTHROPIC_BASE_URL": url,
            "ROOST_LOG_LEVEL": "error",
            **agents_file(folder, **{name: agent}),
        }

        def bare_of(number: int) -> Bare:
            return Bare(folder / f"bare-{number}", url, agent)

        print(f"--- {name}")
        aims = {NEW: 0.5, LIVE: 1.2, WOKEN: 1.1}
        race(folder, model, environ, name, bare_of, rounds=3 if quick else 9).show(aims)
        weigh_bare(bare_of, 3)
        weigh(folder, environ, name, EACH, counts=(1, 3) if quick else (1, 10))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("agents", nargs="*", default=list(AGENTS), metavar="AGENT")
    given = options.parse_args()
    for name in given.agents:
        measure(name, quick=given.quick)


if __name__ == "__main__":
    main()
