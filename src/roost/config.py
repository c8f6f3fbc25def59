"""One frozen Settings, read once. Nothing else touches the environment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from roost.errors import StartupError

_log = logging.getLogger(__name__)
_UNPREFIXED = {"anthropic_api_key", "anthropic_base_url", "openai_api_key", "openai_base_url"}
RENAMED = {"pool": "prestart", "max_wakes": "max_starts"}
"""Settings by the names they had before, which are still read."""

_LISTS = {
    "trust_levels": ("sandboxed", "vault", "full"),
}


def _listed(value: object) -> object:
    """A list as an environment variable has it: with commas between."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


_Port = Annotated[int, Field(ge=1, le=65535)]
_Host = Annotated[str, Field(pattern=r"^(\*\.)?[A-Za-z0-9_.-]{1,253}$")]
Ports = Annotated[frozenset[_Port], BeforeValidator(_listed)]
Hosts = Annotated[tuple[_Host, ...], BeforeValidator(_listed)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_listed)]


class Settings(BaseModel):
    """Every knob an operator has; each is the environment variable of the same name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    data: Path = Field(Path(".roost"), description="Where Roost keeps its database and keys.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(
        8700, ge=0, le=65535, description="The port to listen on; 0 takes a free one."
    )
    database_url: SecretStr | None = Field(
        None,
        description="The database, `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`; by default `roost.db` in the data directory.",
    )
    blobs_url: str | None = Field(
        None,
        description="Where snapshots of sessions' files are kept, `file:///PATH` or `s3://BUCKET/PREFIX`; by default `blobs` in the data directory.",
    )
    api_key: SecretStr | None = Field(
        None, description="The administrator's API key; by default one is made at the first start."
    )
    master_key: SecretStr | None = Field(
        None,
        description="What secrets in the database are sealed with: 32 bytes in base64, the same for all servers; several with commas between them, of which the first seals and all open. By default a file in the data directory.",
    )
    url: str | None = Field(None, description="The server the command line talks to.")
    anthropic_api_key: SecretStr | None = Field(
        None,
        description="The key for the model. Without it, Roost answers from its scripted model.",
    )
    anthropic_base_url: str | None = Field(
        None, description="Where the model is; by default the Anthropic API."
    )
    openai_api_key: SecretStr | None = Field(
        None, description="The key for models that speak the OpenAI API, which Codex asks."
    )
    openai_base_url: str | None = Field(
        None, description="Where they are, with `/v1`; by default the OpenAI API."
    )
    upstreams: Path | None = Field(
        None,
        description="A TOML file with several servers of models by name, each with its models; docs/models.md shows one. What none of them serves goes to the model above.",
    )
    vault: Path | None = Field(
        None,
        description="The person's files; sessions' own directories are in `.workspaces` below.",
    )
    agents: Path | None = Field(
        None,
        description="A TOML file with agents by name that speak the Agent Client Protocol, each with its command; docs/harnesses.md shows one.",
    )
    harness: str | None = Field(
        None,
        description="The agent of sessions that name none: `claude` if there is a model key, else `scripted`.",
    )
    sandbox: str = Field(
        "bubblewrap",
        description="What isolates sandboxed sessions: `bubblewrap`, `docker`, `pool`, or one that a package brings.",
    )
    sandbox_fallbacks: str = Field(
        "bubblewrap,docker",
        description="Which other sandboxes a new session may ask for, by name, where its own is missing.",
    )
    trust_levels: str = Field(
        "sandboxed",
        description="Which trust levels there are here, of `sandboxed`, `vault` and `full`; docs/trust.md.",
    )
    docker_socket: Path = Field(
        Path("/var/run/docker.sock"),
        description="Where the Docker engine or Podman's service listens, for `docker` sandboxes.",
    )
    docker_image: str = Field(
        "roost-sandbox", description="What containers are made of; `roost image build` makes it."
    )
    docker_images: str | None = Field(
        None,
        description="Other images for containers, which environments choose by name, such as `node=node:22-slim,rust=registry.example.com/rust@sha256:…`, with commas between.",
    )
    docker_runtime: str | None = Field(
        None, description="Another runtime of the engine for containers, such as `runsc`."
    )
    pool_endpoint: str | None = Field(
        None,
        description="The management endpoint of a pool of code, such as Azure's, for `pool` sandboxes.",
    )
    pool_token: SecretStr | None = Field(
        None,
        description="The token for that pool, such as a key of Roost's; without it, this machine's identity in Azure (the extra `azure`).",
    )
    pool_secret: SecretStr | None = Field(
        None,
        description="Makes identifiers of that pool out of session ids, so that nobody guesses them; the same on all nodes.",
    )
    egress_ports: Ports | None = Field(
        None,
        description="The ports a sandbox may connect to, with commas between; by default 80 and 443.",
    )
    egress_networks: Networks | None = Field(
        None,
        description="Networks a sandbox may reach though they are not public, such as `10.1.0.0/16`, with commas between.",
    )
    webhook_networks: Networks | None = Field(
        None,
        description="Networks that webhooks are sent to though they are not public, such as `10.1.0.0/16`, with commas between; there, to any port. By default none.",
    )
    webhook_days: float = Field(
        30.0, gt=0, description="For how many days it is kept what was sent to webhooks."
    )
    package_hosts: Hosts | None = Field(
        None,
        description="The hosts that `allow_package_managers` stands for, such as `pypi.org,*.pythonhosted.org`; by default none.",
    )
    package_environ: str | None = Field(
        None,
        description="Variables for installing an environment's packages, such as `PIP_INDEX_URL=https://pypi.example.com/simple`, with commas between.",
    )
    package_seconds: float = Field(
        900.0, gt=0, description="How long installing an environment's packages may take."
    )
    package_disk: int = Field(
        8192,
        ge=0,
        description="How much an environment's packages may take on disk while they are installed, in MiB; 0: no limit.",
    )
    package_days: float = Field(
        30.0, gt=0, description="For how many days packages are kept that no session uses."
    )
    package_layers: int = Field(
        100,
        ge=1,
        description="How many different sets of packages are kept; of more, the one unused for longest is removed.",
    )
    package_total_disk: int = Field(
        65536,
        ge=0,
        description="How much all sets of packages may take on disk together, in MiB; of more, those unused for longest are removed. 0: no limit.",
    )
    git_urls: str = Field(
        "https://github.com",
        description="What the addresses of repositories that sessions are given may begin with, with commas between.",
    )
    sandbox_memory: int = Field(
        4096, ge=0, description="How much memory a sandbox may use, in MiB; 0: no limit."
    )
    sandbox_processes: int = Field(
        512, ge=0, description="How many processes and threads a sandbox may have; 0: no limit."
    )
    sandbox_cpus: float = Field(
        2.0, ge=0, description="How many processors' time a sandbox may use; 0: no limit."
    )
    sandbox_disk: int = Field(
        10240,
        ge=0,
        description="How much a session's files may take on disk, in MiB; 0: no limit.",
    )
    models: str = Field(
        "claude-haiku-*",
        description="Which models a session may use besides its agent's own, with commas between; `*`: all. Claude Code reads web pages with the small one.",
    )
    prices: Path | None = Field(
        None,
        description="A JSON file with the models' list prices; docs/egress.md shows one. Without, nothing has a cost.",
    )
    budget_requests: int = Field(
        0, ge=0, description="How many requests to the model a session may make; 0: no limit."
    )
    budget_tokens: int = Field(
        0,
        ge=0,
        description="How many tokens a session may use, without what comes from the prompt cache; 0: no limit.",
    )
    budget_dollars: Decimal = Field(
        Decimal(0),
        ge=0,
        description="What a session may cost at list prices, in US dollars; 0: no limit.",
    )
    sleep_after: float = Field(
        600.0,
        ge=0,
        description="After how many idle seconds an agent's process is ended; the session stays.",
    )
    max_live: int = Field(
        20,
        ge=1,
        description="How many agents stay started while their sessions are idle; the rest sleep.",
    )
    prestart: int = Field(
        1,
        ge=0,
        description="How many agents are started before a session asks for one; 0: none.",
    )
    schedule_jitter: float = Field(
        10.0,
        ge=0,
        le=59,
        description="Within how many seconds after its time a scheduled run starts, so that not all start at once.",
    )
    max_starts: int = Field(
        0,
        ge=0,
        description="How many agents are started at the same time; 0: two for each processor.",
    )
    lease_seconds: float = Field(
        10.0,
        gt=0,
        description="After how long without a sign of life a node's sessions are taken over.",
    )
    work_lease_seconds: float = Field(
        90.0,
        ge=1,
        description="After how long without a heartbeat the worker of a self-hosted environment counts as lost.",
    )
    max_runners: int = Field(
        64, ge=1, description="How many sessions work at the same time on this node; the rest wait."
    )
    agent_memory: int = Field(
        400,
        ge=1,
        description="How much memory one more running session is expected to take, in MiB; nothing is claimed that does not fit.",
    )
    min_free_memory: int = Field(
        0,
        ge=0,
        description="How much memory claims leave free, in MiB; 0: a sixteenth of the machine's.",
    )
    max_load: float = Field(
        4.0,
        ge=0,
        description="The machine's load per processor above which nothing more is claimed; 0: no limit.",
    )
    max_queued: int = Field(
        1000,
        ge=1,
        description="How many unread inputs a session holds before it refuses more; each 64 KiB of one count as another.",
    )
    max_sessions: int = Field(
        100_000,
        ge=0,
        description="How many sessions a tenant may have that are not archived, unless the key says otherwise; 0: no limit.",
    )
    writes_per_minute: int = Field(
        30_000,
        ge=0,
        description="Changing requests per minute and key, unless the key says otherwise; 0: no limit.",
    )
    reads_per_minute: int = Field(
        0,
        ge=0,
        description="Reading requests per minute and key, unless the key says otherwise; 0: no limit.",
    )
    max_streams: int = Field(
        1000, ge=1, description="How many event streams a key may have open at a time."
    )
    max_sockets: int = Field(
        10000, ge=1, description="How many WebSockets a key may have open at a time."
    )
    max_connections: int = Field(
        0,
        ge=0,
        description="How many connections this server holds; 0: three quarters of the open files it may have.",
    )
    max_address_connections: int = Field(
        0,
        ge=0,
        description="How many of them one address may have, a trusted proxy excepted; 0: half of them.",
    )
    trusted_proxies: Networks | None = Field(
        None,
        description="Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed, as addresses or networks with commas between; by default none.",
    )
    head_seconds: float = Field(
        10.0, gt=0, description="How long the head of a request may take to arrive."
    )
    body_seconds: float = Field(
        10.0,
        gt=0,
        description="How long the next 64 KiB of a request's body, or its end, may take to arrive.",
    )
    unread_seconds: float = Field(
        60.0,
        gt=0,
        description="How long a client may take to read the next 64 KiB of an answer before it is cut off.",
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="The largest request body, in bytes."
    )
    max_bodies_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1024,
        description="How many bytes of request bodies are held in memory at a time, one key's at most half.",
    )
    max_file_bytes: int = Field(
        500 * 1024 * 1024, ge=1024, description="The largest upload of files, in bytes."
    )
    max_stored_bytes: int = Field(
        10 * 1024 * 1024 * 1024,
        ge=0,
        description="How many bytes of files a tenant may keep in `/v1/files`, those of its sessions included; 0: no limit.",
    )
    max_snapshot_bytes: int = Field(
        4 * 1024 * 1024 * 1024,
        ge=0,
        description="How many bytes of snapshots are kept of a session, or of a named workspace, the oldest released first and the newest never; 0: no limit.",
    )
    max_tenant_bytes: int = Field(
        64 * 1024 * 1024 * 1024,
        ge=0,
        description="How many bytes of snapshots are kept of all sessions and named workspaces of a tenant; with more, nothing new is stored of them. 0: no limit.",
    )
    min_free_disk: int = Field(
        256,
        ge=0,
        description="How much of a disk snapshots, uploads and imports leave free for the database, in MiB; with less, the server is not ready. 0: none.",
    )
    heartbeat_seconds: float = Field(
        15.0,
        gt=0,
        description="How often a quiet event stream carries a comment, so that proxies keep it.",
    )
    catch_up_seconds: float = Field(
        10.0,
        ge=0,
        description="A stream opened this soon after an input that no stream has shown begins at that input.",
    )
    login_seconds: float = Field(604800.0, gt=0, description="How long a browser stays logged in.")
    token_seconds: float = Field(
        60.0, gt=0, description="How long a token opens WebSockets; those it has opened stay open."
    )
    allowed_origins: str | None = Field(
        None,
        description="Other origins whose pages may use this server with a login or a WebSocket, with commas.",
    )
    max_frame_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, description="The largest WebSocket message, in bytes."
    )
    max_unread_bytes: int = Field(
        4 * 1024 * 1024,
        ge=65536,
        description="How much a WebSocket may leave unread before it is closed and told to resume.",
    )
    ping_seconds: float = Field(
        30.0,
        gt=0,
        description="How often a WebSocket is pinged; one that misses two pings is closed.",
    )
    node_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,128}$",
        description="What this node is called in `roost node ls`; by default the machine's name.",
    )
    drain_seconds: float = Field(
        120.0,
        ge=0,
        description="How long a draining node lets running turns finish before others take them over.",
    )
    stop_seconds: float = Field(
        10.0,
        gt=0,
        description="How long a stopping server lets running turns finish before it hands them back.",
    )
    model_retries: int = Field(
        5,
        ge=0,
        description="How often a failed model request is repeated before the turn is given up.",
    )
    retry_seconds: float = Field(
        0.5,
        gt=0,
        description="The pause before the first repetition of a model request; it doubles each time.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="How log lines are written: `auto` is text on a terminal, JSON elsewhere.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important log lines to write."
    )

    @field_validator(*_LISTS)
    @classmethod
    def _known_words(cls, value: str, info: ValidationInfo) -> str:
        known = _LISTS[info.field_name or ""]
        for word in words(value):
            if word not in known:
                raise ValueError(f"{word!r} is not one of {', '.join(known)}")
        return value

    @classmethod
    def read(cls, environ: Mapping[str, str], **overrides: object) -> Settings:
        """Settings from environment variables, with overrides that are not None on top.

        :raises StartupError: a `ROOST_` variable that is unknown, or a value that is not valid
        """
        found: dict[str, object] = {}
        for variable, value in environ.items():
            name = _setting_of(variable)
            if name is not None and value != "":
                found[name] = value
        for before, name in RENAMED.items():
            if before in found:
                found = {name: found.pop(before)} | found
                _log.warning("%s is now %s", variable_of(before), variable_of(name))
        found |= {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            raise StartupError(
                _explain(error), hint="docs/settings.md lists every setting."
            ) from None


def words(value: str) -> list[str]:
    """What a setting lists, between commas."""
    return [word for part in value.split(",") if (word := part.strip())]


def variable_of(name: str) -> str:
    """The environment variable that sets a setting."""
    return name.upper() if name in _UNPREFIXED else f"ROOST_{name.upper()}"


def _setting_of(variable: str) -> str | None:
    if variable.lower() in _UNPREFIXED:
        return variable.lower()
    return variable.removeprefix("ROOST_").lower() if variable.startswith("ROOST_") else None


def _explain(error: ValidationError) -> str:
    return "; ".join(_problem(str(e["loc"][0]), e["type"], e["msg"]) for e in error.errors())


def _problem(name: str, kind: str, said: str) -> str:
    variable = variable_of(name)
    if kind != "extra_forbidden":
        return f"{variable}: {said}"
    known = [variable_of(field) for field in Settings.model_fields]
    near = get_close_matches(variable, known, n=1, cutoff=0.8)
    return f"{variable} is not a setting" + (f"; did you mean {near[0]}?" if near else "")
