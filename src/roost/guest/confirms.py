"""Questions before something is changed, and their answers, which may come in a later call or a later turn.

A question is a file named after what is asked for: the same tool with the same input. So an answer that comes after
the turn has given up is there when the agent tries the same again; it counts once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from roost.guest.events import emit_confirm_request
from roost.guest.session_store import default_path

SECONDS_VARIABLE: Final = "ROOST_GUEST_CONFIRM_SECONDS"
_SECONDS: Final = 600.0
_LOOKS_EVERY: Final = 0.1
_ID: Final = re.compile(r"[0-9a-f]{32}")


def confirm(request_id: str, allow: bool, message: str = "") -> bool:
    """Answer a question; whether it was open. `message` tells the agent why not."""
    for path in _folder().glob("*.json"):
        asked = _read(path)
        if _ID.fullmatch(request_id) and asked.get("request_id") == request_id:
            if asked.get("allow") is not None:
                return False
            _write(path, {**asked, "allow": bool(allow), "message": message})
            return True
    return False


async def confirmed(tool_name: str, given: dict[str, Any]) -> tuple[bool, str]:
    """Ask, and wait for the answer: whether to go on, and what to tell the agent if not."""
    path = _folder() / f"{_mark(tool_name, given)}.json"
    asked = _read(path)
    if asked.get("allow") is None:
        asked = {"request_id": os.urandom(16).hex(), "tool_name": tool_name, "allow": None}
        _write(path, asked)
        emit_confirm_request(
            asked["request_id"], tool_name, _description(tool_name, given), dict(given)
        )
        seconds = float(os.environ.get(SECONDS_VARIABLE) or _SECONDS)
        until = time.monotonic() + seconds
        while (asked := _read(path)).get("allow") is None:
            if time.monotonic() >= until:
                return False, f"nobody has confirmed this within {seconds:g} seconds"
            await asyncio.sleep(_LOOKS_EVERY)
    with suppress(OSError):
        path.unlink()
    return bool(asked["allow"]), str(asked.get("message") or "the user said no")


def forget() -> None:
    """Forget all questions."""
    for path in _folder().glob("*.json"):
        with suppress(OSError):
            path.unlink()


def _folder() -> Path:
    return default_path().parent / "confirms"


def _mark(tool_name: str, given: dict[str, Any]) -> str:
    whole = json.dumps([tool_name, given], sort_keys=True, default=str)
    return sha256(whole.encode()).hexdigest()[:32]


def _description(tool_name: str, given: dict[str, Any]) -> str:
    for name in ("description", "command", "file_path", "notebook_path", "url"):
        if isinstance(given.get(name), str):
            return f"{tool_name}: {given[name]}"[:500]
    return tool_name


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _write(path: Path, asked: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
    made.write_text(json.dumps(asked), encoding="utf-8")
    made.replace(path)
