"""The real Codex: through Roost, in its sandbox, beside the bare program in the same run.

    python bench/codex.py [--quick]

Run it alone. `_race.py` says what is measured. The bare one is an app server with the same settings, as an editor would
keep it; it resumes from its own record of the conversation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from _race import LIVE, NEW, WOKEN, Model, race, serving, weigh, weigh_bare
from roost.harnesses.codex import bundled_program

EACH = 80  # mebibytes: about what a live session takes
MODEL = "claude-opus-5-5"  # one that Codex does not know, as in Roost's sessions here
OFF = (
    *("apps", "plugins", "hooks", "multi_agent", "goals", "memories", "image_generation"),
    *("tool_suggest", "skill_search", "shell_snapshot", "enable_request_compression"),
)
PROVIDER = {"name": "bench", "wire_api": "responses", "env_key": "OPENAI_API_KEY"}


class Bare:
    """The app server by itself, with one conversation."""

    def __init__(self, home: Path, url: str) -> None:
        (home / ".codex").mkdir(parents=True, exist_ok=True)
        self._home = home
        settings: dict[str, object] = {
            "model_provider": "bench",
            **{f"model_providers.bench.{name}": value for name, value in PROVIDER.items()},
            "model_providers.bench.base_url": f"{url}/v1",
            **{f"features.{name}": False for name in OFF},
            "analytics.enabled": False,
            "check_for_update_on_startup": False,
            "skills.bundled.enabled": False,
            "web_search": "disabled",
        }
        flags = [part for n, v in settings.items() for part in ("-c", f"{n}={json.dumps(v)}")]
        self._command = [str(bundled_program() / "bin" / "codex"), "app-server", *flags]
        self._environ = {
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "OPENAI_API_KEY": "placeholder",
        }
        self._thread = ""
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
        about = {"name": "bench", "title": "bench", "version": "1"}
        self._ask("initialize", clientInfo=about, capabilities={"experimentalApi": True})
        self._answer()
        settings = {"approvalPolicy": "untrusted", "sandbox": "danger-full-access"}
        if resume:
            self._ask("thread/resume", threadId=self._thread, **settings)
        else:
            self._ask("thread/start", model=MODEL, **settings)
        self._thread = self._answer()["thread"]["id"]
        self.say()

    def say(self) -> None:
        said = [{"type": "text", "text": "Hello"}]
        self._ask("turn/start", threadId=self._thread, input=said)

    def wait_until_done(self) -> None:
        while self._next().get("method") != "turn/completed":
            pass

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate()

    def _ask(self, method: str, **params: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._number += 1
        frame = {"id": self._number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(frame).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        """What the newest request has come to."""
        while True:
            message = self._next()
            if message.get("id") == self._number and "method" not in message:
                result: dict[str, Any] = message["result"]
                return result

    def _next(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "Codex ended"
        message: dict[str, Any] = json.loads(line)
        return message


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    model = Model()
    with tempfile.TemporaryDirectory(prefix="codex-") as name, serving(model) as url:
        folder = Path(name)
        environ = {"OPENAI_BASE_URL": f"{url}/v1", "ROOST_LOG_LEVEL": "error"}

        def bare_of(number: int) -> Bare:
            return Bare(folder / f"bare-{number}", url)

        aims = {NEW: 0.5, LIVE: 1.2, WOKEN: 1.1}
        race(folder, model, environ, "codex", bare_of, rounds=3 if quick else 9).show(aims)
        weigh_bare(bare_of, 5)
        weigh(folder, environ, "codex", EACH, counts=(1, 5) if quick else (1, 20, 100))


if __name__ == "__main__":
    main()
