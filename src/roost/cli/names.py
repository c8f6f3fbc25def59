"""Things that a person calls by their name, and the API by their id."""

from __future__ import annotations

from typing import Final, NamedTuple

from roost.cli.client import ApiClient, Json
from roost.errors import Conflict, InvalidRequest, NotFound


class Named(NamedTuple):
    """A kind of things: where they are listed, how their ids begin, and the field with their name."""

    noun: str
    path: str
    prefix: str
    field: str = "name"
    listed_by: str | None = None


AGENTS: Final = Named("agent", "/v1/agents", "agent_")
ENVIRONMENTS: Final = Named("environment", "/v1/environments", "env_")
VAULTS: Final = Named("vault", "/v1/vaults", "vlt_", "display_name", "`roost vaults ls`")
DEPLOYMENTS: Final = Named(
    "deployment", "/v1/deployments", "depl_", listed_by="`roost deployment ls`"
)


def id_of(client: ApiClient, word: str, kind: Named) -> str:
    """An id, by the id or the name. :raises NotFound: :raises InvalidRequest: two are called so"""
    if word.startswith(kind.prefix):
        return word
    named = [
        each["id"] for each in client.pages(kind.path, {"limit": 100}) if each[kind.field] == word
    ]
    if not named:
        hint = kind.listed_by or "Give its id, or another name."
        raise NotFound(f"there is no {kind.noun} {word!r}", hint=hint)
    if len(named) > 1:
        raise InvalidRequest(
            f"{len(named)} {kind.noun}s are called {word!r}", hint=f"Give an id: {', '.join(named)}"
        )
    return str(named[0])


def named_or_made(client: ApiClient, kind: str, body: Json) -> Json:
    """The thing with this name; it is made if there is none."""
    if found := _find(client, kind, body["name"]):
        return found
    try:
        return client.post(f"/v1/{kind}", body)
    except Conflict:
        # Somebody made it between our looking and our asking.
        if found := _find(client, kind, body["name"]):
            return found
        raise


def _find(client: ApiClient, kind: str, name: str) -> Json | None:
    for item in client.pages(f"/v1/{kind}", {"limit": 100}):
        if item["name"] == name:
            return item
    return None
