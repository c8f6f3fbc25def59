"""Which conversation goes on here: a file in the container."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

DEFAULT_TEAM: Final = "omnia-data"
PATH_VARIABLE: Final = "ROOST_GUEST_SESSION_FILE"


@dataclass
class SessionState:
    """A conversation: `session_id` is that of the agent's program."""

    session_id: str
    team: str = DEFAULT_TEAM
    initialized: bool = False
    conversation_turns: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


def default_path() -> Path:
    """Where the file is unless a path is given: `$ROOST_GUEST_SESSION_FILE`, or in the home."""
    return Path(os.environ.get(PATH_VARIABLE) or Path.home() / ".roost/session.json")


def records() -> Path:
    """Where the agent's program keeps its own records of conversations, a folder for each directory."""
    folder = os.environ.get("CLAUDE_CONFIG_DIR")
    return (Path(folder) if folder else Path.home() / ".claude") / "projects"


class SessionStore:
    """Keeps a `SessionState` in a file. `problem` says what was wrong with the file that was loaded last."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self.problem = ""

    def load(self) -> SessionState | None:
        """What was saved last; None: nothing was, or it cannot be read. Such a file is moved aside."""
        self.problem = ""
        try:
            return _state(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.problem = f"{self.path} cannot be read: {error}"
        with suppress(OSError):
            self.path.replace(f"{self.path}.corrupt")
        return None

    def save(self, state: SessionState) -> bool:
        """Replace the file, all at once; whether that worked."""
        made = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(made, "w", encoding="utf-8", opener=_private) as file:
                json.dump(asdict(state), file)
                file.flush()
                os.fsync(file.fileno())
            made.replace(self.path)
        except (OSError, TypeError, ValueError) as error:
            self.problem = f"{self.path} cannot be written: {error}"
            with suppress(OSError):
                made.unlink()
            return False
        return True

    def clear(self) -> bool:
        """Delete the file; whether there was one."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.is_file()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_TYPES: Final = {
    "session_id": str,
    "team": str,
    "initialized": bool,
    "conversation_turns": int,
    "metadata": dict,
}


def _state(read: object) -> SessionState:
    """:raises ValueError: it is no state"""
    if not isinstance(read, dict) or not isinstance(read.get("session_id"), str):
        raise ValueError("there is no session_id in it")
    known = {each.name: read[each.name] for each in fields(SessionState) if each.name in read}
    for name, value in known.items():
        if not isinstance(value, _TYPES[name]):
            raise ValueError(f"{name} is not of the type {_TYPES[name].__name__}")
    return SessionState(**known)
