"""The few connections a sandbox may make, and what they cost.

A sandbox has no network. What it may reach, it reaches through endpoints of the host: origins (the model,
repositories), each with the credential that is put on outside, and, if its environment has networking, an
HTTP proxy with rules. Inside there are only placeholders.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from roost.domain.budget import Budget, Prices, Spent
from roost.domain.usage import Usage
from roost.ports.sandbox_provider import Endpoint, Mount


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One request that went to the model.

    `upstream` is the name of the server of models that it went to; `vault` if the session brought its own.
    `status` is what the model's server answered; 502 if it did not, 499 if the agent hung up first.
    Without `complete` the answer was cut, and `usage` is an estimate from what was seen of it.
    """

    session_id: str
    model: str
    usage: Usage
    status: int
    seconds: float
    complete: bool = True
    upstream: str = ""


Reason = Literal[
    "host_not_allowed",
    "port_not_allowed",
    "address_not_allowed",
    "server_name_not_allowed",
    "client_hello_unreadable",
    "path_not_allowed",
    "model_not_allowed",
    "budget_reached",
    "placeholder_not_replaced",
    "credential_rejected",
    "credential_unavailable",
]


class RefusalReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something inside asked for what it may not have, or sends a placeholder that cannot be replaced.

    `hint` is for a person, in sentences, where the reason alone does not say what happened. `server` is the
    name of the MCP server it is about, if it is about one. A sandbox can ask faster than a log should grow:
    `unreported` counts the refusals since the last report that were left out for that reason.
    """

    session_id: str
    host: str
    port: int
    reason: Reason
    hint: str = ""
    server: str = ""
    unreported: int = 0


class Networking(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sandbox may connect to, apart from the model.

    `allowed_hosts` are names (`example.com`) or suffixes (`*.example.com`), and count only under
    `limited`. `package_managers` adds the hosts the operator named for them. Under every kind the
    operator's ports hold, and addresses that are not public stay out of reach.
    """

    kind: Literal["none", "limited", "unrestricted"] = "none"
    allowed_hosts: Sequence[str] = ()
    package_managers: bool = False


Put = Literal["x-api-key", "bearer", "basic"]
"""How a secret is put on a request: as which header. `basic` is for git servers: the secret is the password."""


async def _final(secret: str) -> bool:
    """Nothing takes the place of a secret that is not accepted."""
    return False


class Credential(msgspec.Struct, frozen=True):
    """A secret, and how it is put on a request. It never enters a sandbox.

    `secret` is asked for each request, so that one that is replaced meanwhile is used from then on; None: the
    request goes without. It may raise a `RoostError`, whose message the session is told. `rejected` is given
    a secret that the server has answered with 401; it says whether there is another one by now, and then the
    request is sent once more.
    """

    secret: Callable[[], Awaitable[str | None]]
    put: Put
    rejected: Callable[[str], Awaitable[bool]] = _final

    @classmethod
    def fixed(cls, value: str, put: Put) -> Credential:
        """A secret that stays the same for as long as the grant lasts."""

        async def secret() -> str:
            return value

        return cls(secret, put)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A server outside that a session may use, with a credential that it never sees.

    `protocol` is what may be asked of it: `git`, `mcp`, or the name of a model's API (`anthropic`, `openai`).
    It is reached under its own URL, through a variable of the sandbox, or at its address in
    `OpenGrant.addresses`, as the programs for it expect. `restricted`: its URL is a client's, so it is reached
    only at addresses that sandboxes may reach. `name` is what the session calls it, if it has a name.
    """

    url: str
    protocol: str
    credential: Credential | None = None
    restricted: bool = False
    name: str = ""


class Substitution(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that programs in a sandbox use but do not have: a placeholder that is replaced on its way out.

    The sandbox has the placeholder in the environment variable `variable`. It is replaced in requests to
    `hosts`, which are written as in `Networking` (None: to every host that the networking allows), in the
    values of headers, in bodies, or in both. Anywhere else it goes out as it is. `secret` is asked for each
    request, so that one that is replaced meanwhile is used from then on; None: there is none any more.
    """

    variable: str
    placeholder: str
    secret: Callable[[], Awaitable[str | None]]
    hosts: Sequence[str] | None = None
    header: bool = True
    body: bool = True


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one session may reach while one runner has it.

    `api` is the model's API that the agent speaks, and `model` the one that its definition names; a session
    that brings no origin for the API gets the operator's, and one whose API is "" gets no model. `models` are ids, or beginnings of ids that end in `*`; None: any. `spent` is what earlier grants of the
    session have used of the budget. `account` and `refused` are awaited one at a time for each connection,
    are given a few seconds, and may fail: that is logged, and the connection goes on. `origins` can be
    reached whatever the networking is, but for MCP servers, for which it holds. `on_host`: the session is not
    isolated, so its agent finds MCP servers on the host's own loopback, and no rule holds for them. `raised` is asked before a request is refused because the budget is
    used up: it says what the budget is by now. `model_port`: the model is to be at a port as well, for programs
    that cannot connect to a unix socket.
    """

    session_id: str
    generation: int
    account: Callable[[Account], Awaitable[None]]
    refused: Callable[[RefusalReport], Awaitable[None]]
    api: str = "anthropic"
    model: str = ""
    model_port: bool = False
    models: Sequence[str] | None = None
    budget: Budget = Budget()
    raised: Callable[[], Awaitable[Budget]] | None = None
    spent: Spent = Spent()
    prices: Prices = {}
    networking: Networking = Networking()
    origins: Sequence[Origin] = ()
    substitutions: Sequence[Substitution] = ()
    on_host: bool = False


class ModelReply(Protocol):
    """An answer to a request to the model, as it comes."""

    @property
    def status(self) -> int:
        """Its status, as the model's server gave it, or the one of a refusal."""
        ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Its headers, with names in lower case."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces of its body. :raises ConnectionError: it was cut off"""
        ...

    async def aclose(self) -> None:
        """Called when it was read, and when nobody waits for the rest of it: the request then ends."""
        ...


class AskModel(Protocol):
    """Asks a session's model from the server's own process, by its egress."""

    async def __call__(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes, /
    ) -> ModelReply:
        """Called by a harness that needs no program, instead of connecting to the endpoint. All that holds for a
        request of a sandbox holds for it: what may be asked, the key, the budget, the number of requests at a time.
        A refusal is a reply with the API's error object.

        :raises ConnectionError: the egress is closed, or was closed before there was an answer
        """
        ...


class OpenGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant that is being served: what a sandbox must be given to use it. It holds no secret.

    `environ` tells programs inside about the `endpoints`, and has the placeholders. `addresses` are the URLs
    under which origins are reached inside, by their own. `mounts` are the files that `environ` names, and
    `certificates` is the one that programs inside are to trust instead of the system's list of certificates,
    with that list in it and then the one of `authority`; None: the system's own. `unreachable` are hosts of substitutions that the networking does not allow, by
    the name of the variable. `left_out` are variables that are not set, as the name has another meaning.
    `web_search`: the server of the agent's model searches the web, if a request offers that to the model.
    `window`: how many tokens that model takes at once, if the operator has said so. `ask_model` is for harnesses
    that ask it from this process; None: the grant has no model.
    """

    endpoints: Sequence[Endpoint]
    environ: Mapping[str, str]
    addresses: Mapping[str, str] = {}
    mounts: Sequence[Mount] = ()
    certificates: Path | None = None
    authority: Path | None = None
    unreachable: Mapping[str, Sequence[str]] = {}
    left_out: Sequence[str] = ()
    web_search: bool = False
    window: int | None = None
    ask_model: AskModel | None = None


class Egress(Protocol):
    """Carries the connections of all sandboxes, and puts their credentials on."""

    def open(self, grant: Grant) -> AbstractAsyncContextManager[OpenGrant]:
        """Serve a grant until the context ends. Called by `core/sandbox` before it opens the sandbox.

        Every connection through it is cut, every request accounted for and every socket gone when
        the context has ended. A grant of an older generation of the same session is ended first.

        :raises LeaseLost: a grant of this generation or a newer one is open
        :raises Unavailable: there is no origin for `api`, or the sockets cannot be made
        """
        ...
