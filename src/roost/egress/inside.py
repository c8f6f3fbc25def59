"""What programs in a sandbox are told about its endpoints: paths, ports and placeholders."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from roost.domain.upstream import Upstream
from roost.egress.dialects import MODEL_SOCKET, Dialect
from roost.egress.loopback import FIRST_MCP_PORT, LocalServer
from roost.ports.egress import AskModel, OpenGrant, Origin, Substitution
from roost.ports.sandbox_provider import Endpoint, Mount, Take, UnixAddress

PROXY_SOCKET: Final = "/run/roost/proxy.sock"
GIT_SOCKET: Final = "/run/roost/git.sock"
CERTIFICATE: Final = "/run/roost/ca.pem"
CERTIFICATES: Final = "/run/roost/ca-bundle.pem"
"""The certificate that vouches for hosts to which placeholders are replaced; and all others with it."""
TRUST_STORE: Final = "/run/roost/ca.p12"
"""All of these, as Java wants them."""
MCP_SOCKETS: Final = tuple(f"/run/roost/mcp-{index}.sock" for index in range(20))
"""One for each MCP server that an agent can have: their paths stay as they are, so each has a port of its own."""

_GIT_PORT: Final = 8702
_PROXY_PORT: Final = 3128
_LOCAL: Final = "localhost,127.0.0.1,::1"

# Programs with a list of their own. These add to it what they are given:
_ADD: Final = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
# and these use it instead.
_REPLACE: Final = """
    SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO CARGO_HTTP_CAINFO AWS_CA_BUNDLE
    BUNDLE_SSL_CA_CERT CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE HTTPLIB2_CA_CERTS GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
    NIX_SSL_CERT_FILE HEX_CACERTS_PATH
"""
# Java has neither a list of files nor the usual variables for a proxy. It says on its standard error that it was told.
_JAVA: Final = " ".join(
    f"-D{name}={value}"
    for name, value in (
        ("http.proxyHost", "127.0.0.1"),
        ("http.proxyPort", _PROXY_PORT),
        ("https.proxyHost", "127.0.0.1"),
        ("https.proxyPort", _PROXY_PORT),
        ("javax.net.ssl.trustStore", TRUST_STORE),
        ("javax.net.ssl.trustStoreType", "PKCS12"),
    )
)
_RESERVED: Final = re.compile(
    r"PATH|HOME|PWD|OLDPWD|SHELL|SHLVL|USER|LOGNAME|IFS|ENV|BASH_ENV|TMPDIR|TERM|LANG|LC_.*|LD_.*|DYLD_.*"
    r"|.*_PROXY|ROOST_.*|ANTHROPIC_.*|CLAUDE_.*|GIT_CONFIG.*|GIT_SSL_.*|SSL_CERT_.*|NODE_OPTIONS"
    r"|NODE_EXTRA_CA_CERTS|PYTHON(?:PATH|HOME|STARTUP)",
    re.IGNORECASE,
)


def open_grant(
    directory: Path,
    dialect: Dialect,
    takes: Mapping[str, Take],
    repositories: Sequence[Origin],
    servers: Mapping[str, LocalServer],
    substitutions: Sequence[Substitution],
    unreachable: Mapping[str, Sequence[str]],
    *,
    upstream: Upstream | None,
    ask_model: AskModel | None,
) -> OpenGrant:
    """The sockets in `directory`, as a sandbox is to see them; `takes`: who serves each, by its path inside.

    `servers` are its MCP servers, by their own URLs. `upstream` is the server of its agent's model, and `ask_model`
    asks it.
    """
    environ = dict(dialect.environ)
    if PROXY_SOCKET in takes:
        environ |= _proxy()
    # The number says which repository is meant: one address may be given twice, with two tokens.
    local = [f"http://127.0.0.1:{_GIT_PORT}/{index}" for index in range(len(repositories))]
    if GIT_SOCKET in takes:
        environ |= _git(repositories, local)
    shown = files_of(substitutions, takes)
    if shown:
        environ |= dict.fromkeys(_ADD, CERTIFICATE) | dict.fromkeys(_REPLACE.split(), CERTIFICATES)
        environ["JAVA_TOOL_OPTIONS"] = _JAVA
    left_out = [each.variable for each in substitutions if _is_reserved(each.variable, environ)]
    environ |= {
        each.variable: each.placeholder for each in substitutions if each.variable not in left_out
    }
    addresses = {each.url: url for each, url in zip(repositories, local, strict=True)}
    addresses |= {url: each.url for url, each in servers.items()}
    return OpenGrant(
        endpoints=_endpoints(directory, takes, servers, dialect.port),
        environ=environ,
        addresses=addresses,
        mounts=[Mount(directory / name_of(path), path) for path in shown],
        certificates=directory / name_of(CERTIFICATES) if shown else None,
        authority=directory / name_of(CERTIFICATE) if shown else None,
        unreachable=unreachable,
        left_out=left_out,
        web_search=upstream is not None and upstream.web_search,
        window=None if upstream is None else upstream.window,
        ask_model=ask_model,
    )


def _endpoints(
    directory: Path,
    takes: Mapping[str, Take],
    servers: Mapping[str, LocalServer],
    model_port: int | None,
) -> list[Endpoint]:
    """One for each socket. An MCP server has a port of its own in the sandbox, or is open at one of the host."""
    ports = {MODEL_SOCKET: model_port, PROXY_SOCKET: _PROXY_PORT, GIT_SOCKET: _GIT_PORT}
    ports |= {path: FIRST_MCP_PORT + index for index, path in enumerate(MCP_SOCKETS)}
    on_host = {
        path: each.port
        for path, each in zip(MCP_SOCKETS, servers.values(), strict=False)
        if each.bound
    }
    ports |= on_host
    return [
        Endpoint(
            address=UnixAddress(directory / name_of(path)),
            socket=path,
            port=ports[path],
            is_open=path in on_host,
            take=take,
        )
        for path, take in takes.items()
    ]


def files_of(substitutions: Sequence[Substitution], served: Collection[str]) -> list[str]:
    """The paths inside of the files that programs need for substitutions, if the proxy is `served`."""
    return (
        [CERTIFICATE, CERTIFICATES, TRUST_STORE] if substitutions and PROXY_SOCKET in served else []
    )


def _is_reserved(variable: str, environ: Mapping[str, str]) -> bool:
    """Whether a name has a meaning to the sandbox, or to programs that must start in it."""
    return variable in environ or _RESERVED.fullmatch(variable) is not None


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
