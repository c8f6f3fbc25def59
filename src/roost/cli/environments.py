"""The command `roost environments`: environments, and keys for the workers of self-hosted ones."""

from __future__ import annotations

from roost.cli.client import ApiClient, at
from roost.cli.names import ENVIRONMENTS, id_of
from roost.cli.table import print_json, print_table, when


def print_environments(client: ApiClient, *, as_json: bool) -> None:
    """A table of all environments."""
    found = list(client.pages(ENVIRONMENTS.path, {"limit": 100}))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "name", "kind", "created"],
        [[e["id"], e["name"], e["config"]["type"], when(e["created_at"])] for e in found],
    )


def create_environment(client: ApiClient, name: str, *, self_hosted: bool, as_json: bool) -> None:
    """Make an environment and print its id."""
    kind = "self_hosted" if self_hosted else "cloud"
    made = client.post(ENVIRONMENTS.path, {"name": name, "config": {"type": kind}})
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def create_environment_key(
    client: ApiClient, environment: str, name: str, *, as_json: bool
) -> None:
    """Make a key for workers and print its secret."""
    made = client.post(_keys(client, environment), {"name": name})
    if as_json:
        print_json(made)
    else:
        print(made["secret"])


def print_environment_keys(client: ApiClient, environment: str, *, as_json: bool) -> None:
    """A table of an environment's keys."""
    keys = client.get(_keys(client, environment))["data"]
    if as_json:
        print_json(keys)
        return
    print_table(
        ["id", "name", "created"], [[k["id"], k["name"], when(k["created_at"])] for k in keys]
    )


def revoke_environment_key(
    client: ApiClient, environment: str, key_id: str, *, as_json: bool
) -> None:
    """From now on the key opens nothing."""
    environment_id = id_of(client, environment, ENVIRONMENTS)
    answer = client.delete(at("roost", "v1", "environments", environment_id, "keys", key_id))
    if as_json:
        print_json(answer)
    else:
        print(f"revoked {key_id}")


def _keys(client: ApiClient, environment: str) -> str:
    return at("roost", "v1", "environments", id_of(client, environment, ENVIRONMENTS), "keys")
