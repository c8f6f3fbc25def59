"""`/roost/v1/nodes`: the servers of this database, for administrators."""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, administrators_only
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.work.nodes import Fleet
from roost.domain.events import iso
from roost.ports.nodes import Node

RESOURCE: Final = Resource()


@RESOURCE.get("roost.nodes.list", "/roost/v1/nodes")
async def list_(call: ApiCall, fleet: Fleet) -> ASGIApp:
    """Every node, and how it is."""
    administrators_only(call)
    nodes = [_view(node, fleet.here) for node in await fleet.all()]
    return reply({"data": nodes, "next_page": None})


@RESOURCE.post("roost.nodes.drain", "/roost/v1/nodes/{node}/drain")
async def drain(call: ApiCall, fleet: Fleet) -> ASGIApp:
    """From now on the node takes no new work, and hands over what it has."""
    return await _marked(call, fleet, draining=True)


@RESOURCE.post("roost.nodes.resume", "/roost/v1/nodes/{node}/resume")
async def resume(call: ApiCall, fleet: Fleet) -> ASGIApp:
    """From now on the node works again."""
    return await _marked(call, fleet, draining=False)


async def _marked(call: ApiCall, fleet: Fleet, *, draining: bool) -> ASGIApp:
    administrators_only(call)
    node = await fleet.mark(call.params["node"], draining=draining)
    return reply(_view(node, fleet.here))


def _view(node: Node, here: str) -> dict[str, Any]:
    about = node.about
    state = "draining" if node.draining_since else "up"
    return {
        "type": "node",
        "id": node.id,
        "name": about.name,
        "here": node.id == here,
        "state": state if node.lives else "gone",
        "draining_since": iso(node.draining_since) if node.draining_since else None,
        "version": about.version,
        "started_at": iso(about.started_at),
        "lease_seconds_left": round((node.expires_at - node.read_at) / 1_000_000, 3),
        "sessions": about.sessions,
        "sessions_at_work": about.working,
        "sessions_with_work": node.waiting,
        "warm_agents": about.warm,
        "waking_agents": about.waking,
        "live_agents": about.live,
        "max_runners": about.most,
    }
