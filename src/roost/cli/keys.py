"""The command `roost key`, which makes, lists and revokes API keys."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from roost.cli.client import ApiClient, at
from roost.cli.table import print_json, print_table, when

_KEYS = "/roost/v1/keys"
_MASTER_KEY = "/roost/v1/master_key"


def create_key(
    client: ApiClient,
    asked: Mapping[str, str | None],
    limits: Mapping[str, int | None],
    *,
    as_json: bool,
) -> None:
    """Make a key and print its secret, which cannot be read again."""
    body: dict[str, object] = {name: value for name, value in asked.items() if value is not None}
    if given := {name: value for name, value in limits.items() if value is not None}:
        body["limits"] = given
    made = client.post(_KEYS, body)
    if as_json:
        print_json(made)
        return
    print(made["secret"])


def print_keys(client: ApiClient, *, as_json: bool) -> None:
    """All keys, oldest first."""
    keys = client.get(_KEYS)["data"]
    if as_json:
        print_json(keys)
        return
    print_table(
        ["id", "name", "tenant", "role", "trust ceiling", "sees", "created", "revoked"],
        [
            [
                k["id"],
                k["name"],
                k["tenant"],
                k["role"],
                k["trust_ceiling"],
                k["sees"],
                when(k["created_at"]),
                when(k["revoked_at"]),
            ]
            for k in keys
        ],
    )


def revoke_key(client: ApiClient, key_id: str, *, as_json: bool) -> None:
    """From now on the key opens nothing."""
    answer = client.delete(at("roost", "v1", "keys", key_id))
    if as_json:
        print_json(answer)
    else:
        print(f"revoked {key_id}")


def rotate_master(client: ApiClient, *, as_json: bool) -> int:
    """Seal every secret anew with the key that seals now, and say how far it is; the exit code."""
    before = client.get(_MASTER_KEY)
    old = sum(count for key, count in before["sealed_with"].items() if key != before["key"])
    done, unreadable, after = 0, [], None
    while True:
        step = client.post(f"{_MASTER_KEY}/reseal", {"after": after})
        done += step["resealed"]
        unreadable += step["unreadable"]
        if (after := step["after"]) is None:
            break
        if step["resealed"]:
            print(f"{done} of {old} secrets sealed anew", file=sys.stderr)
    now = client.get(_MASTER_KEY)
    if as_json:
        print_json({**now, "resealed": done, "unreadable": unreadable})
    else:
        print(f"{done} of {old} secrets sealed anew with the key {now['key']}")
        counts = sorted(now["sealed_with"].items())
        print_table(["key", "secrets"], [[key, str(count)] for key, count in counts])
    for row in unreadable:
        print(f"roost: no key of this server opens {row}", file=sys.stderr)
    return 1 if now["sealed_with"].keys() - {now["key"]} else 0
