"""The command `roost vaults`, which makes vaults and puts secrets into them.

A secret is typed without being shown, or comes by standard input. It is no argument: other programs can read
those, and shells keep them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from getpass import getpass
from itertools import islice
from typing import Final, NamedTuple

from roost.cli.client import ApiClient, Json, at
from roost.cli.screen import clean
from roost.cli.table import print_json, print_table, when
from roost.errors import InvalidRequest, NotFound

_ALL: Final = "/v1/vaults"
_ROLE: Final = "roost.role"
_ENGINE: Final = "roost.engine"
_BASE_URL: Final = "roost.base_url"
_SECRET_OF: Final = {
    "environment_variable": "secret_value",
    "static_bearer": "token",
    "mcp_oauth": "access_token",
}
"""The field of each type of credential that has its secret."""


def metadata_given(
    notes: Sequence[str], *, model_key: bool, engine: str | None, base_url: str | None
) -> Json:
    """A new vault's metadata. :raises InvalidRequest:"""
    metadata: Json = {}
    for note in notes:
        key, equals, value = note.partition("=")
        if not (key and equals):
            raise InvalidRequest(f"--metadata: {note!r} is not KEY=VALUE")
        metadata[key] = value
    if not model_key and (engine is not None or base_url is not None):
        raise InvalidRequest("--engine and --base-url are for vaults with --model-key")
    said = {_ROLE: "llm" if model_key else None, _ENGINE: engine, _BASE_URL: base_url}
    return metadata | {key: value for key, value in said.items() if value is not None}


class SecretUse(NamedTuple):
    """What a secret is for, as the command line says it: one of the first three, and where a variable's goes."""

    mcp: str | None
    variable: str | None
    model_key: bool
    hosts: Sequence[str]
    any_host: bool
    header: bool
    body: bool

    def auth(self) -> Json:
        """The credential without its secret. :raises InvalidRequest: what was said does not fit together"""
        if [self.mcp is not None, self.variable is not None, self.model_key].count(True) != 1:
            raise InvalidRequest(
                "say what the secret is for: one of --mcp, --variable and --model-key"
            )
        if self.variable is not None:
            return self._variable(self.variable)
        if self.hosts or self.any_host or self.header or self.body:
            raise InvalidRequest("--host, --any-host, --header and --body are for --variable")
        return {"type": "static_bearer"} | ({"mcp_server_url": self.mcp} if self.mcp else {})

    def _variable(self, name: str) -> Json:
        if bool(self.hosts) is self.any_host:
            raise InvalidRequest(
                "say where the secret may be sent: name hosts with --host, or say --any-host",
                hint="For example: --host api.example.org",
            )
        limited = {"type": "limited", "allowed_hosts": list(self.hosts)}
        return {
            "type": "environment_variable",
            "secret_name": name,
            "networking": {"type": "unrestricted"} if self.any_host else limited,
            "injection_location": {"header": self.header or not self.body, "body": self.body},
        }


def print_vaults(client: ApiClient, *, archived: bool, limit: int, as_json: bool) -> None:
    """Print a table of the newest vaults."""
    params: dict[str, str | int | list[str]] = {"limit": min(limit, 100)}
    if archived:
        params["include_archived"] = "true"
    found = list(islice(client.pages(_ALL, params), limit))
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
    made = client.post(_ALL, {"display_name": name, "metadata": metadata})
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


def print_credentials(client: ApiClient, vault: str, *, archived: bool, as_json: bool) -> None:
    """Print a table of a vault's credentials, the newest first."""
    params: dict[str, str | int | list[str]] = {"limit": 100}
    if archived:
        params["include_archived"] = "true"
    found = list(client.pages(f"{_path(client, vault)}/credentials", params))
    if as_json:
        print_json(found)
        return
    columns = ["id", "type", "for", "name", "created", "updated", "archived"]
    print_table(columns, [_row(credential) for credential in found])


def add_credential(
    client: ApiClient, vault: str, auth: Json, name: str | None, *, as_json: bool
) -> None:
    """Ask for a secret, put it into the vault, and print the credential's id."""
    path = _path(client, vault)
    body: Json = {"auth": auth | {_SECRET_OF[auth["type"]]: _asked_for()}}
    if name is not None:
        body["display_name"] = name
    made = client.post(f"{path}/credentials", body)
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def replace_secret(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> None:
    """Ask for another secret, and put it into the credential."""
    path = f"{_path(client, vault)}{at('credentials', credential)}"
    kind = client.get(path)["auth"]["type"]
    changed = client.post(path, {"auth": {"type": kind, _SECRET_OF[kind]: _asked_for()}})
    _say("replaced the secret of", changed, as_json=as_json)


def archive_vault(client: ApiClient, vault: str, *, as_json: bool) -> None:
    """Its secrets are gone."""
    _say("archived", client.post(f"{_path(client, vault)}/archive", {}), as_json=as_json)


def archive_credential(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> None:
    """Its secret is gone."""
    path = f"{_path(client, vault)}{at('credentials', credential)}"
    _say("archived", client.post(f"{path}/archive", {}), as_json=as_json)


def remove_vaults(client: ApiClient, vaults: Sequence[str], *, as_json: bool) -> None:
    """Delete each; the first that cannot be deleted ends it."""
    for vault in vaults:
        _say("deleted", client.delete(_path(client, vault)), as_json=as_json)


def remove_credential(client: ApiClient, vault: str, credential: str, *, as_json: bool) -> None:
    """Delete one."""
    path = f"{_path(client, vault)}{at('credentials', credential)}"
    _say("deleted", client.delete(path), as_json=as_json)


def vault_id(client: ApiClient, word: str) -> str:
    """The id of a vault, by its id or its name. :raises NotFound: :raises InvalidRequest: two are called so"""
    if word.startswith("vlt_"):
        return word
    named = [v["id"] for v in client.pages(_ALL, {"limit": 100}) if v["display_name"] == word]
    if not named:
        raise NotFound(f"there is no vault {word!r}", hint="`roost vaults ls`")
    if len(named) > 1:
        raise InvalidRequest(
            f"{len(named)} vaults are called {word!r}", hint=f"Give an id: {', '.join(named)}"
        )
    return str(named[0])


def _path(client: ApiClient, word: str) -> str:
    return at("v1", "vaults", vault_id(client, word))


def _asked_for() -> str:
    """The secret, whole; but the end of its last line is the shell's or the editor's."""
    if sys.stdin.isatty():
        secret = getpass("Secret (not shown): ")
    else:
        secret = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not secret:
        raise InvalidRequest(
            "there is no secret", hint="Type it, or send it: roost vaults add … < FILE"
        )
    return secret


def _say(what: str, answer: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print(f"{what} {answer['id']}")


def _use(vault: Json) -> str:
    theirs = "sandbox0.managed_agents.role"
    metadata = vault["metadata"]
    return "model" if metadata.get(_ROLE, metadata.get(theirs)) == "llm" else "tools"


def _row(credential: Json) -> list[str]:
    auth = credential["auth"]
    return [
        credential["id"],
        auth["type"],
        auth.get("secret_name") or auth.get("mcp_server_url") or "model",
        credential["display_name"] or "",
        when(credential["created_at"]),
        when(credential["updated_at"]),
        when(credential["archived_at"]),
    ]
