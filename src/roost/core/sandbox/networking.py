"""From an environment's configuration to what its sessions may reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from roost.ports.egress import Networking


def networking_of(
    config: Mapping[str, Any], mcp_servers: Sequence[Mapping[str, Any]] = ()
) -> Networking:
    """What an environment's configuration allows to an agent with these MCP servers."""
    if (
        config.get("type") == "self_hosted"
    ):  # the agent works elsewhere: here pages are fetched for it
        return Networking(kind="unrestricted")
    rules = config.get("networking") or {}
    if rules.get("type") == "unrestricted":
        return Networking(kind="unrestricted")
    if rules.get("type") != "limited":
        return Networking()
    servers = mcp_servers if rules.get("allow_mcp_servers") else ()
    hosts = [urlsplit(server["url"]).hostname for server in servers]
    return Networking(
        kind="limited",
        allowed_hosts=[*(rules.get("allowed_hosts") or ()), *filter(None, hosts)],
        package_managers=bool(rules.get("allow_package_managers")),
    )
