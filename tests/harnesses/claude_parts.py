"""What the tests of the claude harness build their examples from."""

from __future__ import annotations

from typing import Any

from roost.domain.events import Entry
from roost.harnesses.claude.calls import ToolCalls
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.permissions import Policy
from roost.harnesses.stable_ids import StableIds
from roost.ports.drafts import new_draft
from roost.ports.harness import Confinement, Emit, Output

IDS = StableIds("sesn_1")


def agent(*tools: dict[str, Any], servers: tuple[str, ...] = ()) -> dict[str, Any]:
    named = [{"type": "url", "name": name, "url": f"https://{name}.test"} for name in servers]
    return {"model": {"id": "opus"}, "system": None, "tools": list(tools), "mcp_servers": named}


def toolset(policy: str = "always_allow", *configs: dict[str, Any], enabled: bool = True) -> Any:
    default = {"enabled": enabled, "permission_policy": {"type": policy}}
    return {"type": "agent_toolset_20260401", "default_config": default, "configs": list(configs)}


def mcp_toolset(server: str, policy: str = "always_ask") -> Any:
    default = {"enabled": True, "permission_policy": {"type": policy}}
    return {
        "type": "mcp_toolset",
        "mcp_server_name": server,
        "default_config": default,
        "configs": [],
    }


def custom(name: str) -> Any:
    return {"type": "custom", "name": name, "description": "x", "input_schema": {"type": "object"}}


def calls_of(agent: dict[str, Any], bounds: Confinement | None = None) -> ToolCalls:
    return ToolCalls(IDS, Toolbox(agent), Policy(agent, bounds))


def entry(type: str, /, **fields: Any) -> Entry:
    draft = new_draft(type, **fields)
    return Entry(1, draft.id, draft.type, draft.body, 0)


def said(*blocks: dict[str, Any], id: str = "msg_1", **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": id, "content": list(blocks)}, **more}


def streamed(**event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None}


def told(outputs: list[Output]) -> list[str]:
    return [o.drafts[0].type if isinstance(o, Emit) else type(o).__name__ for o in outputs]
