"""Where conversations of agents in a pool are kept, so that they go on in another container."""

from __future__ import annotations

import fcntl
import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from roost import disk

_TURNS: Final = 1000  # whose containers are known
_log = logging.getLogger(__name__)


class StateKeeper(Protocol):
    """Keeps conversations outside of the pool. Several hosts may use one at the same time."""

    async def load(self, session_id: str) -> bytes | None:
        """What was saved with the highest version; None: nothing."""

    async def save(self, session_id: str, state: bytes, version: int) -> None:
        """Replace what was saved, unless that has a higher version: then another host has a newer one.

        Called after each turn, before it is told that it is done.
        """

    async def begin(self, session_id: str, turn_id: str, container: str) -> str:
        """Note in which container a turn is begun, unless that was noted before: the one that is noted.

        Called before the turn is begun.
        """

    async def forget(self, session_id: str) -> None:
        """Remove what was saved."""


class DirectoryKeeper:
    """Keeps conversations as files of a directory."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    async def load(self, session_id: str) -> bytes | None:
        """What was saved with the highest version; None: nothing."""
        return await anyio.to_thread.run_sync(self._load, _name(session_id))

    async def save(self, session_id: str, state: bytes, version: int) -> None:
        """Replace what was saved, all at once, unless that has a higher version."""
        await anyio.to_thread.run_sync(self._save, _name(session_id), state, version)

    async def begin(self, session_id: str, turn_id: str, container: str) -> str:
        """Note in which container a turn is begun, unless that was noted before: the one that is noted."""
        return await anyio.to_thread.run_sync(self._begin, _name(session_id), turn_id, container)

    async def forget(self, session_id: str) -> None:
        """Remove what was saved. Which turns were begun is still known: they are not taken again."""
        await anyio.to_thread.run_sync(self._forget, _name(session_id))

    def _load(self, name: str) -> bytes | None:
        while saved := self._saved(name):
            try:
                return saved[-1].read_bytes()
            except FileNotFoundError:  # there is a newer one by now
                continue
        return None

    def _save(self, name: str, state: bytes, version: int) -> None:
        path = self._directory / f"{name}-{version:012d}.tgz"
        self._write(path, state)
        for older in [each for each in self._saved(name) if each.stem < path.stem]:
            older.unlink(missing_ok=True)

    def _saved(self, name: str) -> list[Path]:
        """All versions, the newest one last. There are several if hosts save at the same time.

        The oldest may have no number: it was saved before there were versions.
        """
        return sorted(self._directory.glob(f"{name}*.tgz"), key=lambda path: path.stem)

    def _begin(self, name: str, turn_id: str, container: str) -> str:
        path = self._directory / f"{name}.turns"
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _known(path)
            if turn_id not in known:
                known[turn_id] = container
                kept = list(known.items())[-_TURNS:]
                self._write(path, json.dumps(dict(kept)).encode())
        return known[turn_id]

    def _forget(self, name: str) -> None:
        for path in self._saved(name):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        disk.write_whole(path, data)


def _known(path: Path) -> dict[str, str]:
    """The containers of turns. With a file that is damaged they are forgotten, and the session goes on."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        _log.warning("which turns were begun cannot be read: %s", path, extra={"action": "begin"})
        return {}
    return {str(turn): str(container) for turn, container in found.items()}


def _name(session_id: str) -> str:
    return sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
