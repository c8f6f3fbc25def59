"""An environment's packages: what may be named, and how each package manager installs them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from roost.errors import InvalidRequest

MANAGERS: Final = ("apt", "cargo", "gem", "go", "npm", "pip")
"""In the order in which they install."""

NONE: Final[dict[str, Any]] = {"type": "packages", **{manager: [] for manager in MANAGERS}}

MARK: Final = "\x1eroost "
"""What a line of the script begins with that says which manager is at work, and with what."""

_MOST: Final = 100
_PACKAGE: Final = re.compile(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,255}")
_PROGRAMS: Final = {"apt": "apt-get", "pip": "python3"}
_ENVIRON: Final = """
export HOME=/home/sandbox LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
export TMPDIR=$HOME/tmp CARGO_HOME=$HOME/cargo GOPATH=$HOME/go GOCACHE=$HOME/go-cache GOBIN=/usr/local/bin
export PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export npm_config_cache=$HOME/npm npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
mkdir -p "$TMPDIR"
"""
# Debian's own: no services are started, nothing is kept for later, and a part that cannot be had is a failure.
_APT: Final = (
    "apt-get -q -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o APT::Update::Error-Mode=any "
    "-o Acquire::Retries=2 -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
)
# A file of the machine cannot be changed in place, nor linked to. Of a package that is replaced by a newer version
# each is made the layer's own first.
_OWN: Final = r"""
$apt -s install --no-install-recommends -- "$@" | sed -n 's/^Inst \([^ ]*\) \[.*/\1/p' |
    while read -r package; do dpkg -L "$package"; done |
    while read -r file; do
        [ -f "$file" ] && [ ! -L "$file" ] && cp -p "$file" "$file.roost" && mv -f "$file.roost" "$file"
    done
"""


class InstallStep(NamedTuple):
    """One manager's part."""

    manager: str
    packages: Sequence[str]


def checked(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The packages of an environment, after a change: a manager that is not named keeps its own.

    :raises InvalidRequest: naming the field
    """
    after: dict[str, Any] = {"type": "packages"}
    for manager in MANAGERS:
        named = given.get(manager)
        after[manager] = list(before[manager] if named is None else named)
        _check(after[manager], f"config.packages.{manager}")
    return after


def _check(packages: Sequence[str], field: str) -> None:
    if len(packages) > _MOST:
        raise InvalidRequest(f"{field}: at most {_MOST} packages")
    for index, package in enumerate(packages):
        if not _PACKAGE.fullmatch(package):
            raise InvalidRequest(
                f"{field}.{index}: a package is named in one word of at most 256 characters that does not "
                "begin with '-'"
            )


def installations(packages: Mapping[str, Any]) -> list[InstallStep]:
    """What is to be installed, in order."""
    return [InstallStep(each, packages[each]) for each in MANAGERS if packages.get(each)]


def program_of(manager: str) -> str:
    """The program that a manager is."""
    return _PROGRAMS.get(manager, manager)


def script(wanted: Sequence[InstallStep]) -> str:
    """A shell's script that installs them, as the superuser of a system of its own."""
    parts = [_ENVIRON, "exec 2>&1"]
    for step in steps(wanted):
        program = program_of(step.manager)
        missing = f'{{ echo "the program {program} is missing on this machine"; exit 1; }}'
        parts += [
            f"command -v {program} >/dev/null || {missing}",
            f"echo {shlex.quote(mark_of(step))}",
            f"set -- {shlex.join(step.packages)}",
            f"({_INSTALL[step.manager]}) || exit 1",
        ]
    return "\n".join(parts)


def steps(wanted: Sequence[InstallStep]) -> list[InstallStep]:
    """What the script does, one after the other."""
    return [
        InstallStep(manager, each)
        for manager, packages in wanted
        for each in _steps(manager, packages)
    ]


def mark_of(step: InstallStep) -> str:
    """What the script says before it begins a step."""
    return f"{MARK}{step.manager} {' '.join(step.packages)}"


def _steps(manager: str, packages: Sequence[str]) -> Iterator[Sequence[str]]:
    """Those that install one package at a time say by themselves which one fails."""
    if manager not in ("cargo", "gem", "go"):
        yield packages
        return
    for package in packages:
        latest = manager == "go" and "@" not in package
        yield [f"{package}@latest" if latest else package]


_INSTALL: Final = {
    "apt": f"apt='{_APT}'\n$apt update && {{ {_OWN} }}\n$apt install -y --no-install-recommends -- \"$@\"",
    "cargo": 'cargo install --root /usr/local -- "$@"',
    "gem": 'gem install --no-document --bindir /usr/local/bin -- "$@"',
    "go": 'go install "$@"',
    "npm": 'npm install --global --prefix /usr/local --loglevel=error -- "$@"',
    "pip": 'python3 -m pip install --progress-bar off -- "$@"',
}


def culprits(wanted: InstallStep, said: str) -> list[str]:
    """Those of the packages that the last of a tool's lines names that names one; all of them if none does."""
    for line in reversed(said.splitlines()):
        if named := [each for each in wanted.packages if bare(each) in line]:
            return named
    return list(wanted.packages)


def bare(package: str) -> str:
    """A package's name without its version."""
    return re.split(r"(?<=.)[@=<>!~:\[]", package, maxsplit=1)[0]
