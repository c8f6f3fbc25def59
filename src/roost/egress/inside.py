"""What the inside of a sandbox is told about its ways out: paths, ports and placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from roost.ports.egress import OpenGrant, Repository
from roost.ports.sandbox import Endpoint, Take, UnixAddress

MODEL_SOCKET = "model.sock"
PROXY_SOCKET = "proxy.sock"
GIT_SOCKET = "git.sock"

_DIRECTORY = "/run/roost"
_MODEL_PORT = 8701
_GIT_PORT = 8702
_PROXY_PORT = 3128
_PLACEHOLDER = "placeholder"
_LOCAL = "localhost,127.0.0.1,::1"


def open_grant(
    directory: Path,
    dialect: Literal["anthropic", "openai"],
    takes: Mapping[str, Take],
    repositories: Sequence[Repository] = (),
) -> OpenGrant:
    """The sockets in `directory`, as a sandbox is to see them; `takes`: who serves each of them."""
    environ, model_port = _model(dialect)
    ports = {MODEL_SOCKET: model_port, PROXY_SOCKET: _PROXY_PORT, GIT_SOCKET: _GIT_PORT}
    addresses: dict[str, str] = {}
    if PROXY_SOCKET in takes:
        environ |= _proxy()
    if GIT_SOCKET in takes:
        # The number says which repository is meant; one address may be given twice, with two tokens.
        local = [f"http://127.0.0.1:{_GIT_PORT}/{index}" for index in range(len(repositories))]
        environ |= _git(repositories, local)
        addresses = {each.url: url for each, url in zip(repositories, local, strict=True)}
    endpoints = [
        Endpoint(
            address=UnixAddress(directory / name),
            socket=f"{_DIRECTORY}/{name}",
            port=ports[name],
            take=take,
        )
        for name, take in takes.items()
    ]
    return OpenGrant(endpoints=endpoints, environ=environ, addresses=addresses)


def _model(dialect: Literal["anthropic", "openai"]) -> tuple[dict[str, str], int | None]:
    """The variables, and the port if the dialect's programs cannot connect to a unix socket."""
    if dialect == "openai":
        base = f"http://127.0.0.1:{_MODEL_PORT}/v1"
        return {"OPENAI_BASE_URL": base, "OPENAI_API_KEY": _PLACEHOLDER}, _MODEL_PORT
    # The address must be http: with https the agent's command line speaks TLS to the socket.
    return {
        "ANTHROPIC_UNIX_SOCKET": f"{_DIRECTORY}/{MODEL_SOCKET}",
        "ANTHROPIC_BASE_URL": "http://localhost",
        "ANTHROPIC_API_KEY": _PLACEHOLDER,
    }, None


def _git(repositories: Sequence[Repository], local: Sequence[str]) -> dict[str, str]:
    """Each repository's own address leads git to the socket; what is cloned keeps that address."""
    environ = {"GIT_CONFIG_COUNT": str(len(repositories))}
    for index, (repository, url) in enumerate(zip(repositories, local, strict=True)):
        environ[f"GIT_CONFIG_KEY_{index}"] = f"url.{url}.insteadOf"
        environ[f"GIT_CONFIG_VALUE_{index}"] = repository.url.removesuffix(".git")
    return environ


def _proxy() -> dict[str, str]:
    url = f"http://127.0.0.1:{_PROXY_PORT}"
    both = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": _LOCAL}
    # Some programs read only the small letters (curl, for http), and Node must be told to look.
    return (
        both | {name.lower(): value for name, value in both.items()} | {"NODE_USE_ENV_PROXY": "1"}
    )
