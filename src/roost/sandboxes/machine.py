"""What this machine, or the container that the server is in, still has to give to agents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_GROUPS: Final = Path("/sys/fs/cgroup")
_PLENTY: Final = 1_000_000


class Machine:
    """How many more agents there is room for. Bytes; `max_load` is per processor, 0: never mind.

    `least_free` is what has to stay free, 0: a sixteenth of all there is.
    """

    def __init__(
        self,
        *,
        agent_memory: int,
        least_free: int,
        max_load: float,
        proc: Path = _PROC,
        groups: Path = _GROUPS,
    ) -> None:
        self._agent_memory = agent_memory
        self._max_load = max_load
        self._proc = proc
        self._groups = list(_own_groups(proc, groups))
        self._least_free = least_free or self._memory("MemTotal") // 16

    def room(self) -> int:
        """For how many more agents; 0 if the processors have enough to do already."""
        if self._max_load and os.getloadavg()[0] > self._max_load * (os.cpu_count() or 1):
            return 0
        return max(0, (self.available() - self._least_free) // self._agent_memory)

    def short(self) -> bool:
        """Whether there is not even memory for one more."""
        return self.available() - self._least_free < self._agent_memory

    def available(self) -> int:
        """How much memory may still be used, by the machine and by every group that we are in."""
        return min([self._memory("MemAvailable"), *map(_left, self._groups)])

    def _memory(self, name: str) -> int:
        for line in _lines(self._proc / "meminfo"):
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return _PLENTY * self._agent_memory  # nothing is known, so nothing is held back


def _own_groups(proc: Path, groups: Path) -> Iterator[Path]:
    """The control groups that may have a limit: our own and those above it, of both kinds."""
    for line in _lines(proc / "self" / "cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        group = groups / kinds / path.lstrip("/")
        while group.is_relative_to(groups / kinds):
            yield group
            group = group.parent


def _left(group: Path) -> int:
    """What a group may still use; pages that only cache files are given back when they are needed."""
    most = _number(group / "memory.max", group / "memory.limit_in_bytes")
    used = _number(group / "memory.current", group / "memory.usage_in_bytes")
    if most is None or used is None:
        return 1 << 62
    cached = 0
    for line in _lines(group / "memory.stat"):
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            cached = int(line.split()[1])
    return most - used + cached


def _number(*files: Path) -> int | None:
    for file in files:
        for line in _lines(file):
            return int(line) if line.isdigit() else None
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
