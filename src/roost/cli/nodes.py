"""The command `roost node`, which lists nodes and drains them."""

from __future__ import annotations

from typing import Any

from roost.cli.client import ApiClient, at
from roost.cli.table import print_json, print_table, when
from roost.errors import InvalidRequest

_NODES = "/roost/v1/nodes"


def print_nodes(client: ApiClient, *, as_json: bool) -> None:
    """Print a table of all nodes."""
    nodes = client.get(_NODES)["data"]
    if as_json:
        print_json(nodes)
        return
    print_table(
        ["id", "name", "state", "version", "sessions", "running", "agents", "lease", "started"],
        [
            [
                n["id"],
                n["name"],
                n["state"],
                n["version"],
                str(n["sessions"]),
                f"{n['sessions_at_work']}/{n['max_runners']}",
                str(n["live_agents"]),
                f"{n['lease_seconds_left']:.1f} s",
                when(n["started_at"]),
            ]
            for n in nodes
        ],
    )


def mark_node(
    client: ApiClient, name: str | None, *, drain: bool, here: bool, as_json: bool
) -> None:
    """Tell a node to drain, or to work again. `here`: the server that answers is the one meant."""
    name = name or _only_one(client.get(_NODES)["data"], here=here)
    answer = client.post(at("roost", "v1", "nodes", name, "drain" if drain else "resume"), {})
    if as_json:
        print_json(answer)
    else:
        print(f"{answer['id']} ({answer['name']}) {'drains' if drain else 'works again'}")


def _only_one(nodes: list[dict[str, Any]], *, here: bool) -> str:
    """The node that is meant if none is named. Behind a load balancer, who answers is nobody's choice."""
    living = [node for node in nodes if node["state"] != "gone"]
    if len(living) > 1 and not here:
        names = ", ".join(f"{node['name']} ({node['id']})" for node in living)
        raise InvalidRequest(f"there are {len(living)} nodes", hint=f"Name one: {names}")
    return str(next(node["id"] for node in living if node["here"]))
