"""The agents that the operator named: a file of them, each a table with a name and a command (`ROOST_AGENTS`)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from roost.errors import RoostError, StartupError
from roost.harnesses import HARNESSES
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.ports.sandbox_provider import Mount

STATE: Final = ".acp"
"""The directory in a session's home where the harness keeps which of the agent's sessions it is."""

_HINT: Final = "docs/harnesses.md shows a file of agents."
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SHOWN: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_NOT_SHOWN: Final = (
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/tmp",
    "/var",
    "/run",
    "/home/sandbox",
    "/workspace",
)
_MODEL: Final = "{model}"
_MODEL_ID: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")


class AcpAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file.

    `{model}` in a word of the command or in a variable stands for the model of the session's agent. `mounts`
    are files and directories that the sandbox shows, read-only, where they are on the host, or elsewhere
    (`SOURCE:TARGET`). `meta` is given to the agent as `_meta` when a session is opened.
    """

    command: list[str]
    upstream: Literal["anthropic", "openai"] = "anthropic"
    environ: dict[str, str] = {}
    mounts: list[str] = []
    own_directories: list[str] = []
    abilities: list[Literal["approvals", "mcp", "files", "images"]] = []
    version: str = "not stated"
    meta: dict[str, Any] = {}

    @property
    def profile(self) -> HarnessProfile:
        """What it declares."""
        own = dict.fromkeys(self.abilities, True)
        return HarnessProfile(
            abilities=Abilities(
                **own,
                interrupts=True,
                deltas=True,
                budget=True,
                prestart=True,
                fork=True,
                rewind=True,
            ),
            needs_sandbox=True,
            upstream=self.upstream,
            model_port=True,
            fixed_tools="approvals" not in self.abilities,
            only_sandboxed=True,
            own_directories=frozenset({STATE, *self.own_directories}),
        )

    @property
    def shown(self) -> list[Mount]:
        """What a sandbox has to show, apart from what every one does. The program is one of it, or in one."""
        named = [self._mount(words) for words in self.mounts]
        program, targets = self.command[0], [mount.target for mount in named]
        if program.startswith("/") and not _is_below(program, [*_SHOWN, *targets]):
            named.append(Mount(Path(program), program))
        return named

    @staticmethod
    def _mount(words: str) -> Mount:
        source, _, target = words.partition(":")
        return Mount(Path(source), target or source)

    @property
    def _program(self) -> Path:
        """Where the program is on the host."""
        program = self.command[0]
        for mount in self.shown:
            if _is_below(program, [mount.target]):
                return Path(f"{mount.source}{program.removeprefix(mount.target)}")
        return Path(program)

    def for_model(self, model: str) -> AcpAgent:
        """The same with this model's id in its places. :raises RoostError: the id cannot stand there"""
        if not _MODEL_ID.fullmatch(model):
            # It is a client's word, and a variable may be a whole configuration.
            raise RoostError(
                f"model: {model[:100]!r} cannot be given to this agent",
                hint="An id has letters, digits, and `.`, `_`, `:`, `/`, `@`, `+`, `-`.",
            )
        return replace(
            self,
            command=[word.replace(_MODEL, model) for word in self.command],
            environ={name: value.replace(_MODEL, model) for name, value in self.environ.items()},
        )

    def check(self) -> str:
        """Its version. :raises RoostError: its program is not on this machine"""
        advice, program = "Install it, or correct the file of ROOST_AGENTS.", self._program
        for mount in self.shown:
            if not mount.source.exists():
                raise RoostError(f"{mount.source} does not exist", hint=advice)
        if program.is_absolute() and not os.access(program, os.X_OK):
            raise RoostError(f"{program} cannot be executed", hint=advice)
        return self.version


def agents_of(path: Path | None) -> Mapping[str, AcpAgent]:
    """The agents of the file, by name. :raises StartupError: it cannot be read, or one of them cannot be"""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise StartupError(f"ROOST_AGENTS: {path}: {error.strerror}", hint=_HINT) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"ROOST_AGENTS: {path}: {error}", hint=_HINT) from None
    if not tables:
        raise StartupError(f"ROOST_AGENTS: {path} names no agent", hint=_HINT)
    return {name: _agent(name, table, path) for name, table in tables.items()}


def _agent(name: str, table: object, path: Path) -> AcpAgent:
    at = f"ROOST_AGENTS: {path}: {name}"
    try:
        agent = msgspec.convert(table, AcpAgent)
    except msgspec.MsgspecError as error:
        raise StartupError(f"{at}: {error}", hint=_HINT) from None
    if problem := _wrong_name(name) or _wrong_fields(agent) or _wrong_mounts(agent):
        raise StartupError(f"{at}: {problem}", hint=_HINT)
    return agent


def _wrong_name(name: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "a name has small letters, digits, `-` and `_`"
    return "another harness has this name" if name in HARNESSES else None


def _wrong_fields(agent: AcpAgent) -> str | None:
    if not agent.command or not agent.command[0]:
        return "`command` is empty"
    for own in agent.own_directories:
        if own in ("", ".", "..") or "/" in own:
            return f"own_directories: {own!r} is not the name of a directory in the home"
    return None


def _wrong_mounts(agent: AcpAgent) -> str | None:
    targets = [mount.target for mount in agent.shown]
    for path in [*targets, *(str(mount.source) for mount in agent.shown)]:
        if not _is_plain(path):
            return f"mounts: {path!r} is not an absolute path"
    for n, path in enumerate(targets):
        if _is_below(path, [*_SHOWN, *_NOT_SHOWN]):
            return (
                f"mounts: nothing can be shown at {path!r}; name another path: `{path}:/opt/agent`"
            )
        if _is_below(path, targets[:n] + targets[n + 1 :]):
            return f"mounts: {path!r} is part of another one"
    return None


def _is_plain(path: str) -> bool:
    pure = PurePosixPath(path)
    return pure.is_absolute() and str(pure) == path and ".." not in pure.parts and path != "/"


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
