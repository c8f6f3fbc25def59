"""Vaults and their credentials: what clients send, split into what is shown and what is sealed.

A credential has a public part (`Auth`), which clients are shown, and a secret part (`CredentialSecrets`), which
is sealed before it is written and opened only where a request leaves the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from roost.domain import address
from roost.domain.agent import merged
from roost.domain.events import Micros
from roost.domain.llm_vault import ROLE, check_metadata
from roost.errors import InvalidRequest

MOST_CREDENTIALS: Final = 20
"""How many credentials of a vault can be in use, that is, not archived."""

MOST_KEPT: Final = 1000
"""How many credentials a vault can have together with the archived ones."""

MOST_VAULTS: Final = 50
"""How many vaults a session can have."""

MOST_HOSTS: Final = 16
"""How many hosts a variable's secret can be limited to."""

LONGEST_SECRET: Final = 32 * 1024
LONGEST_URL: Final = 2048

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_FORM: Final = "Give a moment in RFC 3339, such as 2027-01-31T12:00:00Z."

# Vaults

Body = dict[str, Any]


def created(params: Mapping[str, Any]) -> Body:
    """The body of a new vault. :raises InvalidRequest: naming the field"""
    metadata = check_metadata(dict(params.get("metadata") or {}))
    return {"display_name": params["display_name"], "metadata": metadata}


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body after an update: what is omitted or null stays, metadata is merged.

    :raises InvalidRequest: naming the field
    """
    after = dict(body)
    if params.get("display_name") is not None:
        after["display_name"] = params["display_name"]
    after["metadata"] = check_metadata(merged(body["metadata"], params.get("metadata")))
    return after


# The public part of a credential


class TokenEndpointAuth(msgspec.Struct, frozen=True):
    """How a client shows a token endpoint who it is."""

    type: Literal["none", "client_secret_basic", "client_secret_post"]


class RefreshConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a new access token is had for a refresh token."""

    client_id: str
    token_endpoint: str
    token_endpoint_auth: TokenEndpointAuth
    resource: str | None = None
    scope: str | None = None


class McpOAuth(msgspec.Struct, frozen=True, kw_only=True, tag="mcp_oauth", tag_field="type"):
    """An access token for an MCP server. `expires_at` is in RFC 3339; None: nobody knows."""

    mcp_server_url: str
    expires_at: str | None = None
    refresh: RefreshConfig | None = None


class StaticBearer(
    msgspec.Struct, frozen=True, kw_only=True, tag="static_bearer", tag_field="type"
):
    """A token for an MCP server, or, with an empty address, for a model's API."""

    mcp_server_url: str


class SecretNetworking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For which hosts a secret is put in: for those, or, if it is unrestricted, for all that can be reached."""

    type: Literal["unrestricted", "limited"]
    allowed_hosts: list[str] | None = None


class InjectionLocation(msgspec.Struct, frozen=True, kw_only=True):
    """In which parts of a request a secret is put in."""

    header: bool = False
    body: bool = False


class EnvironmentVariable(
    msgspec.Struct, frozen=True, kw_only=True, tag="environment_variable", tag_field="type"
):
    """A secret that a program in the sandbox uses by the name of a variable, without ever having it."""

    secret_name: str
    networking: SecretNetworking
    injection_location: InjectionLocation


Auth = McpOAuth | StaticBearer | EnvironmentVariable

Use = Literal["mcp_oauth", "static_bearer", "environment_variable", "model"]
"""What a credential is used for: its type, but that the key of a model's API is apart."""


def use_of(auth: Auth) -> Use:
    """What a credential is for."""
    match auth:
        case McpOAuth():
            return "mcp_oauth"
        case StaticBearer():
            return "static_bearer" if auth.mcp_server_url else "model"
        case EnvironmentVariable():
            return "environment_variable"


def key_of(auth: Auth) -> str:
    """What no two credentials of a vault share as long as they are not archived."""
    match auth:
        case McpOAuth() | StaticBearer():
            return f"mcp {normalised(auth.mcp_server_url)}" if auth.mcp_server_url else "model"
        case EnvironmentVariable():
            return f"variable {auth.secret_name}"


def normalised(url: str) -> str:
    """An address of an MCP server as it is compared: without a usual port or a slash at its end.

    Only ASCII letters of scheme and host are folded: other folding makes one host of two. The path is compared
    as it is written, percent-encoded.
    """
    parts = urlsplit(url)
    netloc = "".join(c.lower() if c.isascii() else c for c in parts.netloc)
    usual = f":{_USUAL_PORTS.get(parts.scheme, 0)}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{netloc.removesuffix(usual)}{parts.path.rstrip('/')}{query}"


# The secret part


class CredentialSecrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is sealed: the token or the variable's value, and what a new token is had with."""

    value: str
    refresh_token: str | None = None
    client_secret: str | None = None

    def __repr__(self) -> str:
        return "CredentialSecrets(…)"


class OpenedSecret(msgspec.Struct, frozen=True):
    """A secret on its way out, and which version of its credential it is of."""

    value: str
    version: int

    def __repr__(self) -> str:
        return f"OpenedSecret(…, version={self.version})"


class VaultCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A credential of a vault as the database has it.

    `version` rises with each change. `sealed` is the secret part, closed; None once it is archived.
    `refresh_failed`: the access token could not be renewed, and nobody tries again until the credential is changed.
    """

    id: str
    tenant: str
    vault_id: str
    auth: Auth
    display_name: str | None = None
    metadata: dict[str, str] = {}
    refresh_failed: bool = False
    sealed: str | None = None
    version: int = 1
    created_at: Micros = 0
    updated_at: Micros = 0
    archived_at: Micros | None = None

    @property
    def about(self) -> str:
        """What its secrets are sealed as: in another's place they do not open."""
        return f"credential {self.tenant} {self.vault_id} {self.id} secrets"

    def __repr__(self) -> str:
        return f"VaultCredential({self.id}, version={self.version})"


# What clients send


def new_auth(
    given: Mapping[str, Any], now: Micros, *, for_models: bool
) -> tuple[Auth, CredentialSecrets]:
    """The two parts of a new credential. `for_models`: its vault may have one for a model's API.

    :raises InvalidRequest: naming the field, without a secret in it
    """
    match given["type"]:
        case "mcp_oauth":
            return _new_oauth(given, now)
        case "static_bearer":
            token = _token(given["token"], "auth.token")
            return StaticBearer(mcp_server_url=_server_url(given, for_models)), token
        case _:
            return _new_variable(given)


def _new_oauth(given: Mapping[str, Any], now: Micros) -> tuple[Auth, CredentialSecrets]:
    secrets = _token(given["access_token"], "auth.access_token")
    refresh = None
    if (asked := given.get("refresh")) is not None:
        refresh, secrets = _new_refresh(asked, secrets)
    auth = McpOAuth(
        mcp_server_url=_server_url(given, for_models=False),
        expires_at=_future(given.get("expires_at"), now),
        refresh=refresh,
    )
    return auth, secrets


def _new_refresh(
    given: Mapping[str, Any], secrets: CredentialSecrets
) -> tuple[RefreshConfig, CredentialSecrets]:
    _url(given["token_endpoint"], "auth.refresh.token_endpoint")
    how = given["token_endpoint_auth"]
    refresh = RefreshConfig(
        client_id=given["client_id"],
        token_endpoint=given["token_endpoint"],
        token_endpoint_auth=TokenEndpointAuth(how["type"]),
        resource=given.get("resource"),
        scope=given.get("scope") or None,
    )
    return refresh, replace(
        secrets,
        refresh_token=_secret(given["refresh_token"], "auth.refresh.refresh_token"),
        client_secret=_client_secret(how),
    )


def _client_secret(how: Mapping[str, Any]) -> str | None:
    given = how.get("client_secret")
    return given and _secret(given, "auth.refresh.token_endpoint_auth.client_secret")


def _new_variable(given: Mapping[str, Any]) -> tuple[Auth, CredentialSecrets]:
    if not _VARIABLE.fullmatch(given["secret_name"]):
        raise InvalidRequest(
            "auth.secret_name: give the name of an environment variable: letters, digits and `_`"
        )
    location = given.get("injection_location", {"header": True, "body": True})
    auth = EnvironmentVariable(
        secret_name=given["secret_name"],
        networking=_networking(given["networking"]),
        injection_location=_location(location, InjectionLocation()),
    )
    return auth, CredentialSecrets(value=_secret(given["secret_value"], "auth.secret_value"))


def changed_auth(
    auth: Auth, secrets: CredentialSecrets, given: Mapping[str, Any], now: Micros
) -> tuple[Auth, CredentialSecrets]:
    """The two parts after an update: what is omitted stays.

    :raises InvalidRequest: naming the field, without a secret in it
    """
    kind = msgspec.to_builtins(auth)["type"]
    if given["type"] != kind:
        raise InvalidRequest(f"auth.type: the credential's type is {kind!r} and cannot be changed")
    for field in ("mcp_server_url", "secret_name"):
        if field in given:
            _immutable(f"auth.{field}")
    match auth:
        case McpOAuth():
            return _changed_oauth(auth, secrets, given, now)
        case StaticBearer():
            return auth, _with_token(secrets, given.get("token"), "auth.token")
        case EnvironmentVariable():
            return _changed_variable(auth, secrets, given)


def _changed_oauth(
    auth: McpOAuth, secrets: CredentialSecrets, given: Mapping[str, Any], now: Micros
) -> tuple[Auth, CredentialSecrets]:
    secrets = _with_token(secrets, given.get("access_token"), "auth.access_token")
    if "expires_at" in given:
        auth = replace(auth, expires_at=_future(given["expires_at"], now))
    if (asked := given.get("refresh")) is None:
        return auth, secrets
    for field in ("client_id", "token_endpoint", "resource"):
        if field in asked:
            _immutable(f"auth.refresh.{field}")
    if auth.refresh is None:
        raise InvalidRequest(
            "auth.refresh: the credential was made without a refresh token",
            hint="Archive it, and create one with `refresh`.",
        )
    if (scope := asked.get("scope")) is not None:
        auth = replace(auth, refresh=replace(auth.refresh, scope=scope or None))
    return auth, _changed_refresh(auth.refresh, secrets, asked)


def _changed_refresh(
    refresh: RefreshConfig | None, secrets: CredentialSecrets, asked: Mapping[str, Any]
) -> CredentialSecrets:
    if (token := asked.get("refresh_token")) is not None:
        token = _secret(token, "auth.refresh.refresh_token")
        secrets = replace(secrets, refresh_token=token)
    new = _client_secret(asked.get("token_endpoint_auth") or {})
    if new is None:
        return secrets
    if refresh is None or refresh.token_endpoint_auth.type == "none":
        raise InvalidRequest(
            "auth.refresh.token_endpoint_auth: the credential was made without a client secret"
        )
    return replace(secrets, client_secret=new)


def _changed_variable(
    auth: EnvironmentVariable, secrets: CredentialSecrets, given: Mapping[str, Any]
) -> tuple[Auth, CredentialSecrets]:
    if (value := given.get("secret_value")) is not None:
        secrets = replace(secrets, value=_secret(value, "auth.secret_value"))
    if (networking := given.get("networking")) is not None:
        auth = replace(auth, networking=_networking(networking))
    if "injection_location" in given:
        location = _location(given["injection_location"], auth.injection_location)
        auth = replace(auth, injection_location=location)
    return auth, secrets


def _with_token(secrets: CredentialSecrets, token: str | None, field: str) -> CredentialSecrets:
    return secrets if token is None else replace(secrets, value=_token(token, field).value)


def _token(token: str, field: str) -> CredentialSecrets:
    """A token that a header can carry."""
    if not all("!" <= letter <= "~" for letter in _secret(token, field)):
        raise InvalidRequest(f"{field}: a token has no spaces, and plain characters only")
    return CredentialSecrets(value=token)


def _secret(text: str, field: str) -> str:
    if not 0 < len(text.encode()) <= LONGEST_SECRET:
        raise InvalidRequest(f"{field}: give 1 to {LONGEST_SECRET} bytes")
    return text


def _server_url(given: Mapping[str, Any], for_models: bool) -> str:
    url: str = given.get("mcp_server_url", "")
    if url or not for_models:
        if "mcp_server_url" not in given:
            raise InvalidRequest(
                "auth.mcp_server_url: Field required",
                hint=f"Only a vault with the metadata `{ROLE}: llm` has a token without one.",
            )
        _url(url, "auth.mcp_server_url")
    return url


def _url(url: str, field: str) -> None:
    if len(url) > LONGEST_URL:
        raise InvalidRequest(f"{field}: an address has at most {LONGEST_URL} characters")
    parts = address.checked(url, field)
    if parts.fragment:
        raise InvalidRequest(f"{field}: an address that is asked has no `#`")
    address.check_secret_stays_private(parts, field)


def _future(moment: str | None, now: Micros) -> str | None:
    """A moment to come, in UTC. :raises InvalidRequest:"""
    if moment is None:
        return None
    try:
        parsed = datetime.fromisoformat(moment)
        if parsed.tzinfo is None:
            raise InvalidRequest("auth.expires_at: the time zone is missing", hint=_FORM)
        parsed = parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest("auth.expires_at: not a moment", hint=_FORM) from None
    if parsed.timestamp() * 1_000_000 <= now:
        raise InvalidRequest("auth.expires_at: must be in the future")
    return parsed.isoformat().replace("+00:00", "Z")


def _networking(given: Mapping[str, Any]) -> SecretNetworking:
    if given["type"] == "unrestricted":
        return SecretNetworking(type="unrestricted")
    hosts: Sequence[str] = given["allowed_hosts"]
    if len(hosts) > MOST_HOSTS:
        raise InvalidRequest(f"auth.networking.allowed_hosts: at most {MOST_HOSTS} hosts")
    for i, host in enumerate(hosts):
        address.check_pattern(host, f"auth.networking.allowed_hosts.{i}")
    return SecretNetworking(type="limited", allowed_hosts=list(hosts))


def _location(given: Mapping[str, bool], before: InjectionLocation) -> InjectionLocation:
    after = replace(before, **given)
    if not after.header and not after.body:
        raise InvalidRequest("auth.injection_location: at least one of them must be true")
    return after


def _immutable(field: str) -> NoReturn:
    raise InvalidRequest(
        f"{field}: cannot be changed",
        hint="Archive the credential, and create another one.",
    )
