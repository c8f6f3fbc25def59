"""The command `roost harness ls`, which lists the kinds of agents that sessions can have."""

from __future__ import annotations

from roost.cli.client import ApiClient
from roost.cli.table import print_json, print_table


def print_harnesses(client: ApiClient, *, as_json: bool) -> None:
    """Print a table of all harnesses, and why some cannot be used."""
    found = client.get("/roost/v1/harnesses")["data"]
    if as_json:
        print_json(found)
        return
    rows = []
    for each in found:
        abilities = each["abilities"] or {}
        lacks = [name for name, yes in abilities.items() if not yes]
        state = each["version"] or "not available"
        rows.append(
            [
                f"{each['name']}{' (default)' if each['default'] else ''}",
                state,
                each["upstream"] or "-",
                ", ".join(lacks) or "-",
            ]
        )
    print_table(["name", "version", "upstream", "cannot"], rows)
    for each in found:
        if each["unavailable"]:
            why = each["unavailable"]
            print(f"{each['name']}: {why['message']}. {why['hint'] or ''}".rstrip())
