"""The command `roost vaults`, which makes vaults and puts secrets into them.

A secret is typed without being shown, or comes by standard input. It is no argument: other programs can read
those, and shells keep them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from getpass import getpass
from itertools import islice
from typing import Final, NamedTuple

from roost.cli.client import ApiClient, Json, at
from roost.cli.names import VAULTS, id_of
from roost.cli.screen import clean, folded
from roost.cli.table import print_json, print_table, when
from roost.errors import InvalidRequest, NotFound

_ROLE: Final = "roost.role"
_ALSO: Final = {
    _ROLE: "sandbox0.managed_agents.role",
    "roost.engine": "sandbox0.managed_agents.engine",
    "roost.base_url": "sandbox0.managed_agents.llm_base_url",
}
"""Metadata that is also read under another key."""

_SECRET_OF: Final = {
    "environment_variable": "secret_value",
    "static_bearer": "token",
    "mcp_oauth": "access_token",
}
"""The field of each type of credential that has its secret."""

_SECRETS: Final = {
    "access_token": "Access token",
    "refresh_token": "Refresh token",
    "client_secret": "Client secret",
}
"""What is secret in a credential with OAuth, in the order in which it is asked for."""


# What the command line says


class ModelKey(NamedTuple):
    """What a vault with the key for a model says about it; an empty word takes away what was said before."""

    engine: str | None = None
    base_url: str | None = None
    key_header: str | None = None

    def metadata(self) -> Json:
        """What is said, by the names that the API has for it."""
        return {f"roost.{name}": said for name, said in self._asdict().items() if said is not None}


def notes_given(notes: Sequence[str]) -> Json:
    """Metadata as the command line has it. :raises InvalidRequest:"""
    metadata: Json = {}
    for note in notes:
        key, equals, value = note.partition("=")
        if not (key and equals):
            raise InvalidRequest(f"--metadata: {note!r} is not KEY=VALUE")
        metadata[key] = value
    return metadata


def metadata_given(notes: Sequence[str], model: ModelKey, *, model_key: bool) -> Json:
    """A new vault's metadata. :raises InvalidRequest:"""
    said = model.metadata()
    if said and not model_key:
        raise InvalidRequest(
            "--engine, --base-url and --key-header are for vaults with --model-key"
        )
    return notes_given(notes) | ({_ROLE: "llm"} if model_key else {}) | said


class SecretReach(NamedTuple):
    """Where a variable's secret may go, and where in a request it is put."""

    hosts: Sequence[str] = ()
    any_host: bool = False
    header: bool = False
    body: bool = False

    def changes(self) -> Json:
        """What is said of it; what is not stays as it is. :raises InvalidRequest:"""
        if self.hosts and self.any_host:
            raise InvalidRequest("name hosts with --host, or say --any-host: not both")
        said: Json = {}
        if self.any_host:
            said["networking"] = {"type": "unrestricted"}
        elif self.hosts:
            said["networking"] = {"type": "limited", "allowed_hosts": list(self.hosts)}
        if self.header or self.body:
            said["injection_location"] = {"header": self.header, "body": self.body}
        return said

    def auth(self, name: str) -> Json:
        """A new variable, without its secret. :raises InvalidRequest:"""
        said = self.changes()
        if "networking" not in said:
            raise InvalidRequest(
                "say where the secret may be sent: name hosts with --host, or say --any-host",
                hint="For example: --host api.example.org",
            )
        said.setdefault("injection_location", {"header": True, "body": False})
        return {"type": "environment_variable", "secret_name": name, **said}


class OAuth(NamedTuple):
    """A token that was got by OAuth, and how to get the next one; `wanted`: whether it is one at all."""

    wanted: bool = False
    expires_at: str | None = None
    token_endpoint: str | None = None
    client_id: str | None = None
    client_auth: str | None = None
    scope: str | None = None
    resource: str | None = None

    def auth(self, server: str) -> Json:
        """A new token without its secrets. :raises InvalidRequest: what was said does not fit together"""
        auth: Json = {"type": "mcp_oauth", "mcp_server_url": server, "expires_at": self.expires_at}
        if self.token_endpoint is None and self.client_id is None:
            if self.client_auth or self.scope or self.resource:
                raise InvalidRequest(
                    "--client-auth, --scope and --resource are for tokens that are renewed, with --token-endpoint"
                )
            return auth
        if self.token_endpoint is None or self.client_id is None:
            raise InvalidRequest("--token-endpoint and --client-id belong together")
        extra = {"scope": self.scope, "resource": self.resource}
        refresh = {
            "token_endpoint": self.token_endpoint,
            "client_id": self.client_id,
            "token_endpoint_auth": {"type": self.client_auth or "none"},
            **{name: said for name, said in extra.items() if said is not None},
        }
        return auth | {"refresh": refresh}


class SecretUse(NamedTuple):
    """What a secret is for, as the command line says it: one of the first three, and more about it."""

    mcp: str | None
    variable: str | None
    model_key: bool
    reach: SecretReach
    oauth: OAuth

    def auth(self) -> Json:
        """The credential without its secret. :raises InvalidRequest: what was said does not fit together"""
        if [self.mcp is not None, self.variable is not None, self.model_key].count(True) != 1:
            raise InvalidRequest(
                "say what the secret is for: one of --mcp, --variable and --model-key"
            )
        if self.variable is None and any(self.reach):
            raise InvalidRequest("--host, --any-host, --header and --body are for --variable")
        if self.mcp is None and self.oauth.wanted:
            raise InvalidRequest("--oauth is for --mcp")
        if not self.oauth.wanted and any(self.oauth):
            raise InvalidRequest(
                "--expires-at, --token-endpoint, --client-id, --client-auth, --scope and --resource are for --oauth"
            )
        if self.variable is not None:
            return self.reach.auth(self.variable)
        if self.mcp is not None and self.oauth.wanted:
            return self.oauth.auth(self.mcp)
        return {"type": "static_bearer"} | ({"mcp_server_url": self.mcp} if self.mcp else {})


# Vaults


def print_vaults(client: ApiClient, *, archived: bool, limit: int, as_json: bool) -> None:
    """Print a table of the newest vaults."""
    params: dict[str, str | int | list[str]] = {"limit": min(limit, 100)}
    if archived:
        params["include_archived"] = "true"
    found = list(islice(client.pages(VAULTS.path, params), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "name", "for", "created", "archived"],
        [
            [v["id"], v["display_name"], _use(v), when(v["created_at"]), when(v["archived_at"])]
            for v in found
        ],
    )


def create_vault(client: ApiClient, name: str, metadata: Json, *, as_json: bool) -> None:
    """Make one and print its id."""
    made = client.post(VAULTS.path, {"display_name": name, "metadata": metadata})
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def print_vault(client: ApiClient, vault: str, *, as_json: bool) -> None:
    """One vault, with its metadata."""
    found = client.get(_path(client, vault))
    if as_json:
        print_json(found)
        return
    shown = {"id": found["id"], "name": found["display_name"], "for": _use(found)}
    shown |= {"created": when(found["created_at"]), "archived": when(found["archived_at"])}
    for name, value in (*shown.items(), *found["metadata"].items()):
        print(f"{clean(name):<15} {clean(value)}".rstrip())


def edit_vault(
    client: ApiClient, vault: str, name: str | None, model: ModelKey, notes: Json, *, as_json: bool
) -> None:
    """Change what is said; an empty word takes away what was said before. :raises InvalidRequest: nothing is said"""
    path = _path(client, vault)
    said = model.metadata()
    if said:  # under the key that it has, which may be the other one
        there = client.get(path)["metadata"]
        said = {_ALSO[key] if _ALSO.get(key) in there else key: it for key, it in said.items()}
    body = changed_metadata(notes | said) | ({} if name is None else {"display_name": name})
    if not body:
        raise InvalidRequest("say what to change", hint="For example: --name team")
    _say("changed", client.post(path, body), as_json=as_json)


def archive_vault(client: ApiClient, vault: str, *, as_json: bool) -> None:
    """Its secrets are gone."""
    _say("archived", client.post(f"{_path(client, vault)}/archive", {}), as_json=as_json)


def remove_vaults(client: ApiClient, vaults: Sequence[str], *, as_json: bool) -> None:
    """Delete each; the first that cannot be deleted ends it."""
    for vault in vaults:
        _say("deleted", client.delete(_path(client, vault)), as_json=as_json)


# Credentials


def print_credentials(client: ApiClient, vault: str, *, archived: bool, as_json: bool) -> None:
    """Print a table of a vault's credentials, the newest first."""
    params: dict[str, str | int | list[str]] = {"limit": 100}
    if archived:
        params["include_archived"] = "true"
    found = list(client.pages(f"{_path(client, vault)}/credentials", params))
    if as_json:
        print_json(found)
        return
    columns = ["id", "type", "for", "name", "sent to", "created", "updated", "archived"]
    print_table(columns, [_row(credential) for credential in found])


def add_credential(
    client: ApiClient, vault: str, auth: Json, name: str | None, notes: Json, *, as_json: bool
) -> None:
    """Ask for a secret, put it into the vault, and print the credential's id."""
    path = _path(client, vault)
    if auth["type"] == "mcp_oauth":
        refresh = auth.get("refresh")
        auth = _with_secrets(auth, _asked_for_tokens(refresh), refresh)
    else:
        auth = auth | {_SECRET_OF[auth["type"]]: _asked_for()}
    body: Json = {"auth": auth} | ({} if name is None else {"display_name": name})
    made = client.post(f"{path}/credentials", body | ({"metadata": notes} if notes else {}))
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def edit_credential(
    client: ApiClient,
    vault: str,
    credential: str,
    name: str | None,
    reach: SecretReach,
    scope: str | None,
    notes: Json,
    *,
    as_json: bool,
) -> None:
    """Change what is no secret: what it is called, where a variable's goes, what OAuth asks for.

    :raises InvalidRequest: nothing is said, or it does not fit the credential
    """
    path = _credential_path(client, vault, credential)
    said, body = reach.changes(), changed_metadata(notes)
    kind = client.get(path)["auth"]["type"]
    if said and kind != "environment_variable":
        raise InvalidRequest("--host, --any-host, --header and --body are for variables")
    if scope is not None:
        if kind != "mcp_oauth":
            raise InvalidRequest("--scope is for OAuth tokens")
        said["refresh"] = {"scope": scope}
    if said:
        body["auth"] = {"type": kind, **said}
    if name is not None:
        body["display_name"] = name or None
    if not body:
        raise InvalidRequest("say what to change", hint="For example: --host api.example.org")
    _say("changed", client.post(path, body), as_json=as_json)


def replace_secret(
    client: ApiClient, vault: str, credential: str, expires_at: str | None, *, as_json: bool
) -> None:
    """Ask for another secret, and put it into the credential."""
    path = _credential_path(client, vault, credential)
    there = client.get(path)["auth"]
    auth: Json = {"type": there["type"]}
    if there["type"] == "mcp_oauth":
        auth["expires_at"] = expires_at
        found = _asked_for_tokens(there["refresh"], again=True)
        auth = _with_secrets(auth, found, there["refresh"])
    elif expires_at is not None:
        raise InvalidRequest("--expires-at is for OAuth tokens")
    else:
        auth[_SECRET_OF[there["type"]]] = _asked_for()
    _say("replaced the secret of", client.post(path, {"auth": auth}), as_json=as_json)


def validate_credential(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> bool:
    """Have a token tried at its MCP server, and say what came of it; gives whether it is accepted."""
    found = client.post(f"{_credential_path(client, vault, credential)}/mcp_oauth_validate", {})
    if as_json:
        print_json(found)
    else:
        print(f"{found['status']}: {clean(_verdict(found))}")
    return bool(found["status"] == "valid")


def archive_credential(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> None:
    """Its secret is gone."""
    path = _credential_path(client, vault, credential)
    _say("archived", client.post(f"{path}/archive", {}), as_json=as_json)


def remove_credential(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> None:
    """Delete one."""
    _say("deleted", client.delete(_credential_path(client, vault, credential)), as_json=as_json)


def _path(client: ApiClient, word: str) -> str:
    return at("v1", "vaults", id_of(client, word, VAULTS))


def _credential_path(client: ApiClient, vault: str, word: str) -> str:
    """By its id, its name, or what it is for. :raises NotFound: :raises InvalidRequest: two are called so"""
    path = _path(client, vault)
    if word.startswith("vcrd_"):
        return f"{path}{at('credentials', word)}"
    listed = client.pages(f"{path}/credentials", {"limit": 100})
    named = [each["id"] for each in listed if word in (each["display_name"], _purpose(each))]
    if not named:
        hint = f"`roost vaults credentials {vault}`"
        raise NotFound(f"there is no credential {word!r} in use", hint=hint)
    if len(named) > 1:
        raise InvalidRequest(
            f"{len(named)} credentials are called {word!r}", hint=f"Give an id: {', '.join(named)}"
        )
    return f"{path}{at('credentials', named[0])}"


# Secrets


def _asked_for() -> str:
    """The secret, whole; but the end of its last line is the shell's or the editor's."""
    if sys.stdin.isatty():
        secret = getpass("Secret (not shown): ")
    else:
        secret = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not secret:
        raise _none_given()
    return secret


def _asked_for_tokens(refresh: Json | None, *, again: bool = False) -> Json:
    """The secrets of OAuth, and, if an answer of a token endpoint was given, when its token expires.

    Those of a credential that is there need not be given `again`.
    """
    wanted = ["access_token"]
    if refresh is not None:
        wanted.append("refresh_token")
        if refresh["token_endpoint_auth"]["type"] != "none":
            wanted.append("client_secret")
    if sys.stdin.isatty():
        how = "not shown; empty: it stays as it is" if again and refresh else "not shown"
        found: Json = {name: getpass(f"{_SECRETS[name]} ({how}): ") for name in wanted}
    else:
        found = _read_tokens(sys.stdin.read(), wanted)
    found = {name: said for name, said in found.items() if said}
    missing = [name for name in wanted if name not in found]
    if missing and not (again and any(name in found for name in wanted)):
        raise _none_given(_SECRETS[missing[0]].lower())
    return found


def _read_tokens(text: str, wanted: Sequence[str]) -> Json:
    """One of them on a line; or an answer of a token endpoint, as it is."""
    if not text.lstrip().startswith("{"):
        return dict(zip(wanted, text.splitlines(), strict=False))
    try:
        answer = json.loads(text)
        found: Json = {name: str(answer[name]) for name in wanted if name in answer}
        if (seconds := answer.get("expires_in")) is not None:
            expiry = datetime.now(UTC) + timedelta(seconds=float(seconds))
            found["expires_at"] = expiry.isoformat()
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest("what was given is no JSON of a token endpoint") from None
    return found


def _with_secrets(auth: Json, found: Json, refresh: Json | None) -> Json:
    """The credential with the secrets at their places. `refresh` says how its client shows who it is."""
    after: Json = {"expires_at": found.get("expires_at")} if "access_token" in found else {}
    after |= {name: said for name, said in auth.items() if said is not None}
    if "access_token" in found:
        after["access_token"] = found["access_token"]
    if "refresh_token" in found:
        after["refresh"] = after.get("refresh", {}) | {"refresh_token": found["refresh_token"]}
    if refresh is not None and "client_secret" in found:
        how = refresh["token_endpoint_auth"] | {"client_secret": found["client_secret"]}
        after["refresh"] = after.get("refresh", {}) | {"token_endpoint_auth": how}
    return after


def _none_given(what: str = "secret") -> InvalidRequest:
    return InvalidRequest(
        f"there is no {what}", hint="Type it, or send it: roost vaults add … < FILE"
    )


# Words


def changed_metadata(metadata: Json) -> Json:
    """Metadata to be changed; what is empty is taken away."""
    return {"metadata": {key: said or None for key, said in metadata.items()}} if metadata else {}


def _verdict(found: Json) -> str:
    """What came of trying a token, in plain words."""
    if found["status"] == "valid":
        renewed = (found["refresh"] or {}).get("status") == "succeeded"
        more = "; it was renewed, and the new one is stored" if renewed else ""
        return f"the MCP server accepts the token{more}"
    answer = found["mcp_probe"]["http_response"]
    if answer is None:
        return "the MCP server could not be reached"
    if answer["status_code"] != 401:
        return f"the MCP server gave {_answered(answer)}"
    return f"the MCP server does not accept the token{_renewal(found['refresh'])}"


def _renewal(refresh: Json) -> str:
    match refresh["status"]:
        case "no_refresh_token":
            return ", and there is no refresh token"
        case "succeeded":
            return ", nor the one that it was renewed to"
        case "connect_error":
            return ", and the token endpoint could not be reached"
        case _:
            return f", and the token endpoint gave {_answered(refresh['http_response'])}"


def _answered(answer: Json) -> str:
    said = folded(answer["body"])
    return f"{answer['status_code']}{f': {said}' if said else ''}"


def _say(what: str, answer: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print(f"{what} {answer['id']}")


def _use(vault: Json) -> str:
    metadata = vault["metadata"]
    return "model" if metadata.get(_ROLE, metadata.get(_ALSO[_ROLE])) == "llm" else "tools"


def _purpose(credential: Json) -> str:
    auth = credential["auth"]
    return str(auth.get("secret_name") or auth.get("mcp_server_url") or "model")


def _goes_to(auth: Json) -> str:
    """The hosts of a variable's secret, and the parts of a request."""
    if auth["type"] != "environment_variable":
        return ""
    is_limited = auth["networking"]["type"] == "limited"
    hosts = ", ".join(auth["networking"].get("allowed_hosts") or []) if is_limited else "every host"
    parts = [name for name, on in auth["injection_location"].items() if on]
    return f"{hosts} ({', '.join(parts)})"


def _row(credential: Json) -> list[str]:
    return [
        credential["id"],
        credential["auth"]["type"],
        _purpose(credential),
        credential["display_name"] or "",
        _goes_to(credential["auth"]),
        when(credential["created_at"]),
        when(credential["updated_at"]),
        when(credential["archived_at"]),
    ]
