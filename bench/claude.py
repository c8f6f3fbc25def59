"""The real Claude Code: through Roost, in its sandbox, beside the bare CLI in the same run.

    python bench/claude.py [--quick]

Run it alone. `_race.py` says what is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import anyio

from _race import LIVE, NEW, WOKEN, Model, Roost, mebibytes, race, serving, show, weigh
from roost.harnesses.claude import bundled_cli
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.state import default_state
from roost.testing.live import LiveServer

EACH = 150  # mebibytes: about what a live session takes
TOOLS = "Bash,Read,Write,Edit,Glob,Grep,WebFetch,WebSearch"
ARGUMENTS = (
    "--output-format=stream-json --input-format=stream-json --verbose --include-partial-messages "
    "--permission-prompt-tool=stdio --setting-sources= --strict-mcp-config --model=claude-opus-5-5 "
    f"--tools={TOOLS}"
).split()
QUIET = {
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",
}


class Bare:
    """The CLI by itself, as a program would keep it."""

    def __init__(self, home: Path, url: str, number: int) -> None:
        self._environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", **QUIET}
        self._environ |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "placeholder"}
        self._home = home
        self._name = str(uuid5(UUID(int=0), str(number)))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, resume: bool) -> None:
        which = f"--{'resume' if resume else 'session-id'}={self._name}"
        self._process = subprocess.Popen(
            [bundled_cli(), *ARGUMENTS, which],
            env=self._environ,
            cwd=self._home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        first = {"subtype": "initialize", "hooks": None}
        self._write({"type": "control_request", "request_id": "1", "request": first})
        self.say()

    def say(self) -> None:
        message = {"role": "user", "content": "Hello"}
        self._write({"type": "user", "message": message, "parent_tool_use_id": None})

    def wait_until_done(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while b'"type":"result"' not in self._process.stdout.readline():
            assert self._process.poll() is None, "the CLI ended"

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate()

    def _write(self, frame: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(frame).encode() + b"\n")
        self._process.stdin.flush()


async def sandboxes(home: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds that `true` takes in a sandbox of its own, which is made for it, and without."""
    provider = BubblewrapProvider(data=default_state())
    await provider.check()
    confined, plain = [], []
    for number in range(rounds):
        plan = Plan(
            session_id=f"bench-{number}",
            generation=1,
            home=LocalVolume(home),
            workspace=LocalVolume(home),
        )
        began = time.perf_counter()
        async with provider.open(plan) as sandbox:
            await (await sandbox.spawn(["/bin/true"])).wait()
            confined.append(time.perf_counter() - began)
        began = time.perf_counter()
        await anyio.run_process(["/bin/true"])
        plain.append(time.perf_counter() - began)
    return confined, plain


def hibernate(folder: Path, environ: dict[str, str], count: int) -> None:
    """What sessions cost that have worked, and sleep. Their agent is a scripted one: asleep, there is
    no difference.
    """
    with LiveServer(folder / "asleep", **environ) as server:
        roost = Roost(server, "scripted")
        roost.wait_until_done(_told(roost))
        before = mebibytes([server.pid])
        sessions = [_told(roost) for _ in range(count)]
        for session in sessions:
            roost.wait_until_done(session)
        after, size = mebibytes([server.pid]), (folder / "asleep" / "roost.db").stat().st_size
        print(
            f"{count} asleep: {len(roost.processes)} processes; the server {before:.0f} MiB before, "
            f"{after:.0f} now; {size / 1024 / count:.1f} KiB of database each"
        )


def _told(roost: Roost) -> str:
    session = roost.session()
    roost.tell(session)
    return session


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    rounds, model = 3 if quick else 9, Model()
    with tempfile.TemporaryDirectory(prefix="claude-") as name, serving(model) as url:
        folder = Path(name)
        (folder / "home").mkdir()
        environ = {"ANTHROPIC_BASE_URL": url, "ROOST_LOG_LEVEL": "error"}
        track = race(folder, model, environ, "claude", lambda n: Bare(folder, url, n), rounds)
        track.show({NEW: 0.5, LIVE: 1.2, WOKEN: 1.10})
        show("true in a sandbox", *anyio.run(sandboxes, folder / "home", 10 * rounds))
        weigh(folder, environ, "claude", EACH, counts=(1, 5) if quick else (1, 20, 100))
        hibernate(folder, environ, 200 if quick else 2000)


if __name__ == "__main__":
    main()
