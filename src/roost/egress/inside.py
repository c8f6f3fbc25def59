"""What the inside of a sandbox is told about its ways out: paths, ports and placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from roost.ports.egress import Endpoints, Repository
from roost.ports.sandbox import Mount, Take

MODEL_SOCKET = "model.sock"
PROXY_SOCKET = "proxy.sock"
GIT_SOCKET = "git.sock"

_DIRECTORY = "/run/roost"
_MODEL_PORT = 8701
_GIT_PORT = 8702
_PROXY_PORT = 3128
_PLACEHOLDER = "placeholder"
_LOCAL = "localhost,127.0.0.1,::1"


def endpoints_for(
    place: Path,
    dialect: Literal["anthropic", "openai"],
    takes: Mapping[str, Take],
    repositories: Sequence[Repository] = (),
) -> Endpoints:
    """The sockets in `place`, as a sandbox is to see them; `takes`: by whom each is served."""
    environ, forwards = _model(dialect)
    if PROXY_SOCKET in takes:
        environ |= _proxy()
        forwards[_PROXY_PORT] = f"{_DIRECTORY}/{PROXY_SOCKET}"
    if GIT_SOCKET in takes:
        environ |= _git(repositories)
        forwards[_GIT_PORT] = f"{_DIRECTORY}/{GIT_SOCKET}"
    return Endpoints(
        mounts=tuple(Mount(place / name, f"{_DIRECTORY}/{name}") for name in takes),
        environ=environ,
        forwards=forwards,
        ports={port: takes[path.rpartition("/")[2]] for port, path in forwards.items()},
    )


def _model(dialect: Literal["anthropic", "openai"]) -> tuple[dict[str, str], dict[int, str]]:
    path = f"{_DIRECTORY}/{MODEL_SOCKET}"
    if dialect == "openai":
        base = f"http://127.0.0.1:{_MODEL_PORT}/v1"
        return {"OPENAI_BASE_URL": base, "OPENAI_API_KEY": _PLACEHOLDER}, {_MODEL_PORT: path}
    # The address must be http: with https the agent's command line speaks TLS to the socket.
    return {
        "ANTHROPIC_UNIX_SOCKET": path,
        "ANTHROPIC_BASE_URL": "http://localhost",
        "ANTHROPIC_API_KEY": _PLACEHOLDER,
    }, {}


def _git(repositories: Sequence[Repository]) -> dict[str, str]:
    """Each repository's own address leads git to the socket; what is cloned keeps that address."""
    environ = {"GIT_CONFIG_COUNT": str(len(repositories))}
    for index, repository in enumerate(repositories):
        local = f"http://127.0.0.1:{_GIT_PORT}/{index}"
        environ[f"GIT_CONFIG_KEY_{index}"] = f"url.{local}.insteadOf"
        environ[f"GIT_CONFIG_VALUE_{index}"] = repository.url.removesuffix(".git")
    return environ


def _proxy() -> dict[str, str]:
    url = f"http://127.0.0.1:{_PROXY_PORT}"
    both = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": _LOCAL}
    # Some programs read only the small letters (curl, for http), and Node must be told to look.
    return (
        both | {name.lower(): value for name, value in both.items()} | {"NODE_USE_ENV_PROXY": "1"}
    )
