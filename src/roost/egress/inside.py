"""What programs in a sandbox are told about its endpoints: paths, ports and placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from roost.egress.dialects import MODEL_SOCKET, Dialect
from roost.ports.egress import OpenGrant, Origin
from roost.ports.sandbox import Endpoint, Take, UnixAddress

PROXY_SOCKET: Final = "/run/roost/proxy.sock"
GIT_SOCKET: Final = "/run/roost/git.sock"

_GIT_PORT: Final = 8702
_PROXY_PORT: Final = 3128
_LOCAL: Final = "localhost,127.0.0.1,::1"


def open_grant(
    directory: Path,
    dialect: Dialect,
    takes: Mapping[str, Take],
    repositories: Sequence[Origin],
) -> OpenGrant:
    """The sockets in `directory`, as a sandbox is to see them; `takes`: who serves each, by its path inside."""
    ports = {MODEL_SOCKET: dialect.port, PROXY_SOCKET: _PROXY_PORT, GIT_SOCKET: _GIT_PORT}
    endpoints = [
        Endpoint(
            address=UnixAddress(directory / name_of(path)), socket=path, port=ports[path], take=take
        )
        for path, take in takes.items()
    ]
    environ = dict(dialect.environ)
    if PROXY_SOCKET in takes:
        environ |= _proxy()
    # The number says which repository is meant: one address may be given twice, with two tokens.
    local = [f"http://127.0.0.1:{_GIT_PORT}/{index}" for index in range(len(repositories))]
    if GIT_SOCKET in takes:
        environ |= _git(repositories, local)
    addresses = {each.url: url for each, url in zip(repositories, local, strict=True)}
    return OpenGrant(endpoints=endpoints, environ=environ, addresses=addresses)


def name_of(path: str) -> str:
    """The name under which the socket at this path inside lies in a grant's directory on the host."""
    return path.rpartition("/")[2]


def _git(repositories: Sequence[Origin], local: Sequence[str]) -> dict[str, str]:
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
