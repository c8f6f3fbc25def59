"""`make up` and `make down`: a server in the background, and a first conversation with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx2

from roost.cli.environment import server_url, settings
from roost.config import Settings
from roost.errors import RoostError

_ROOST = str(Path(sys.executable).parent / "roost")
_START_SECONDS = 60.0


def up(found: Settings) -> int:
    """Start the server unless it runs, talk to it once, and say where it is."""
    if (pid := _alive(_announced(found).get("pid"))) is not None:
        print(f"Roost already runs at {server_url(found)} (process {pid}); `make down` stops it.")
        return 0
    print("starting roost serve in the background", flush=True)
    if not _start(found):
        print(f"It did not start. The end of {_log(found)}:\n\n{_tail(found)}", file=sys.stderr)
        return 1
    talked = _first_conversation(found)
    _say_where(found)
    return talked


def down(found: Settings) -> int:
    """Stop the server gracefully: running turns get their time, the rest is in the log."""
    pid = _alive(_started(found))
    if pid is None:
        print("No server of `make up` is running.")
        return 0
    print(f"stopping roost serve (process {pid})", flush=True)
    # The second signal tells it not to wait for running turns any longer; they lose nothing.
    for seconds in (found.stop_seconds + 5, 10):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if _gone(pid, time.monotonic() + seconds):
            _pid_file(found).unlink(missing_ok=True)
            print("stopped; its data stays")
            return 0
    print(f"Process {pid} does not stop; see {_log(found)}.", file=sys.stderr)
    return 1


def _start(found: Settings) -> bool:
    found.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _log(found).open("ab") as log:
        # A session of its own: neither make's end nor a closed terminal takes it along.
        process = subprocess.Popen(
            [_ROOST, "serve", "--data", str(found.data)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _pid_file(found).write_text(f"{process.pid}\n")
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _announced(found).get("pid") == process.pid and _ready(found):
            return True
        time.sleep(0.05)
    _pid_file(found).unlink(missing_ok=True)
    process.terminate()
    return False


def _first_conversation(found: Settings) -> int:
    if _real_model(found):
        print('A real model is set, so no message was sent. Try: .venv/bin/roost chat "Hello"')
        return 0
    print("\n> Hello", flush=True)
    data = {"ROOST_DATA": str(found.data)}
    return subprocess.run([_ROOST, "chat", "--once", "Hello"], env=os.environ | data).returncode


def _say_where(found: Settings) -> None:
    key = "$ROOST_API_KEY" if found.api_key else str(found.data / "keys" / "admin.key")
    scripted = " (the model is scripted; set ANTHROPIC_API_KEY for a real one)"
    print(
        f"\nRoost is at   {server_url(found)}{'' if _real_model(found) else scripted}"
        f"\nthe API key   {key}"
        f"\nthe log       {_log(found)}"
        f"\ntalk to it    .venv/bin/roost chat"
        f"\nstop it       make down"
    )


def _real_model(found: Settings) -> bool:
    return found.anthropic_api_key is not None or found.anthropic_base_url is not None


def _ready(found: Settings) -> bool:
    try:
        return httpx2.get(f"{server_url(found)}/readyz", trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def _announced(found: Settings) -> dict[str, object]:
    """What the server of the data directory says about itself."""
    try:
        said: dict[str, object] = json.loads((found.data / "server.json").read_text())
    except (OSError, ValueError):
        return {}
    return said


def _started(found: Settings) -> int | None:
    """The process that `make up` started last."""
    try:
        return int(_pid_file(found).read_text())
    except (OSError, ValueError):
        return None


def _alive(pid: object) -> int | None:
    """The process, if it is there and a server: its number may be another's by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return int(str(pid)) if b"\0serve\0" in command else None


def _gone(pid: int, deadline: float) -> bool:
    while time.monotonic() < deadline:
        if not _runs(pid):
            return True
        time.sleep(0.05)
    return False


def _runs(pid: int) -> bool:
    """Not asked by a signal: what has ended takes those until its parent looks, which may be never."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(") ")[2][0] not in "ZX"


def _pid_file(found: Settings) -> Path:
    return found.data / "server.pid"


def _log(found: Settings) -> Path:
    return found.data / "server.log"


def _tail(found: Settings) -> str:
    return "\n".join(_log(found).read_text(errors="replace").splitlines()[-20:])


if __name__ == "__main__":
    try:
        sys.exit({"up": up, "down": down}[sys.argv[1]](settings()))
    except RoostError as error:
        sys.exit(f"roost: {error.message}\nhint: {error.hint}")
