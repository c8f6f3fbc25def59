"""The names of sandboxes: all that belongs to one can be found by them, with nothing kept anywhere.

A name says which process holds the sandbox, and for which session and generation. A sandbox has it before
anything runs there: as the name of its control group, as an argument of its bwrap, as a variable, as a
container's label. So there is no moment at which a server could die and leave what the next one cannot
find, and nothing to write down that could be lost or be wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from roost.ports.sandbox_provider import Plan
from roost.sandboxes import procfs

VARIABLE: Final = "ROOST_PLACE"
"""The variable that names the sandbox to what runs in one that does not isolate. Servers of older versions are found by it too."""

PATTERN: Final = r"roost-(\d+)\.(\d+)\.(\d+)-([0-9a-f]{16})-(\d+)-([0-9a-f]{8})"


class SandboxName(NamedTuple):
    """What a name says. Pids mean nothing without their namespace, nor without when they began."""

    namespace: int
    pid: int
    start: int
    session: str
    generation: int
    chance: str

    @property
    def holder(self) -> tuple[int, int, int]:
        """The process that holds the sandbox."""
        return self.namespace, self.pid, self.start

    @property
    def orphaned(self) -> bool:
        """Whether that process is dead, so that nobody will end the sandbox."""
        return _is_dead(*self.holder)


Wanted = Callable[[SandboxName], bool]


def name_of(plan: Plan) -> str:
    """A name for a sandbox that this process opens; no two are the same.

    :raises OSError: the plan's home is not there
    """
    own = procfs.look(os.getpid())
    assert own is not None, "this process is alive"
    holder = f"{_namespace()}.{own.pid}.{own.start}"
    return f"roost-{holder}-{_session_of(plan)}-{plan.generation}-{secrets.token_hex(4)}"


def read(name: str) -> SandboxName | None:
    """What a name says; None if it is not one."""
    found = re.fullmatch(PATTERN, name)
    return parsed(found) if found else None


def parsed(found: re.Match[str]) -> SandboxName:
    """What a match of the pattern says."""
    namespace, pid, start, session, generation, chance = found.groups()
    return SandboxName(int(namespace), int(pid), int(start), session, int(generation), chance)


def older_than(plan: Plan) -> Wanted:
    """The sandboxes of the session that must be gone before this one is open, whoever holds them.

    :raises OSError: the plan's home is not there
    """
    session = _session_of(plan)
    return lambda name: name.session == session and name.generation <= plan.generation


def older_or_orphaned(plan: Plan, own: str = "") -> Wanted:
    """Those, and all that nobody holds any more: this one might be given the uid of such a one.

    Not the one with the name `own`: that is the one being opened.

    :raises OSError: the plan's home is not there
    """
    older, spared = older_than(plan), read(own)
    is_dead = cache(_is_dead)  # one server holds most of them
    return lambda name: name != spared and (older(name) or is_dead(*name.holder))


def orphaned(name: SandboxName) -> bool:
    """The sandboxes that nobody holds any more."""
    return name.orphaned


def _session_of(plan: Plan) -> str:
    """Of the session and its home: in a copy of a database there are the same ids for other sessions."""
    home = plan.home.path.stat()
    text = f"{plan.session_id}\0{home.st_dev}\0{home.st_ino}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _is_dead(namespace: int, pid: int, start: int) -> bool:
    """Of other pid namespaces nobody can say."""
    if namespace != _namespace():
        return False
    holder = procfs.look(pid)
    return holder is None or holder.start != start


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
