"""An agent's configuration: from what a client sends to the fully resolved body that is kept.

Responses never leave a default to the reader, so every default is filled in here, once, when the
agent is saved: a session's snapshot then says exactly what it runs with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.json import encode

from roost.domain import address
from roost.errors import AgentModelRequired, FieldNotServed, InvalidRequest

Body = dict[str, Any]

_BUILT_IN = ("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search")
_SERVICE_ACCOUNT = {"type": "service_account"}
DEFAULT_EFFORT: Final = "high"
"""The effort of an agent that names none, as the hosted API has it."""

HARNESS: Final = "roost.harness"
"""The key of an agent's metadata that names the harness of its sessions."""

_POLICY = {"agent_toolset_20260401": "always_allow", "mcp_toolset": "always_ask"}
_MOST_METADATA = 16
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DEEPEST_SCHEMA = 64
_LARGEST_INT = 2**63 - 1
_SNAPSHOT = (
    "name",
    "description",
    "system",
    "model",
    "tools",
    "mcp_servers",
    "skills",
    "multiagent",
    "execution_identity",
)


LARGEST_AGENT = 1_000_000
"""Bytes. Every session carries a copy of its agent, and so does every listing of sessions."""


def created(params: Mapping[str, Any]) -> Body:
    """The body of a new agent. :raises InvalidRequest: naming the field"""
    body = {field: resolve(params.get(field)) for field, resolve in _REPLACED.items()}
    body["model"] = _model(params["model"])
    body["metadata"] = dict(params.get("metadata") or {})
    _check(body)
    return body


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body after an update: what is omitted stays, lists are replaced, metadata is merged.

    :raises InvalidRequest: naming the field
    """
    after = dict(body)
    if params.get("multiagent") and body.get("multiagent"):  # merged, as the hosted API does
        params = {**params, "multiagent": {**body["multiagent"], **params["multiagent"]}}
    for field, resolve in _REPLACED.items():
        if field in params:
            after[field] = resolve(params[field])
    if "model" in params:
        after["model"] = _model(params["model"], before=body["model"])
    after["metadata"] = merged(body["metadata"], params.get("metadata"))
    _check(after)
    return after


def snapshot(agent_id: str, version: int, body: Body) -> Body:
    """The agent as a session keeps it: one version, without its metadata."""
    return {
        "type": "agent",
        "id": agent_id,
        "version": version,
        **{field: body[field] for field in _SNAPSHOT},
    }


def overridden(agent: Body, overrides: Mapping[str, Any]) -> Body:
    """A session's snapshot with its own replacements: omitted inherits, null or [] clears.

    :raises AgentModelRequired: the model was cleared
    :raises InvalidRequest: naming the field
    """
    after = dict(agent)
    for field, resolve in _OVERRIDDEN.items():
        if field in overrides:
            after[field] = resolve(overrides[field])
    if "model" in overrides:
        after["model"] = _override_model(overrides["model"], agent["model"])
    _check(after, at="agent.")
    return after


def merged(
    metadata: Mapping[str, str],
    patch: Mapping[str, str | None] | None,
    *,
    empty_deletes: bool = False,
) -> dict[str, str]:
    """Metadata after a merge patch: a string sets a key, null deletes it.

    :raises InvalidRequest: more pairs than allowed would remain
    """
    after = dict(metadata)
    for key, value in (patch or {}).items():
        if value is None or (empty_deletes and value == ""):
            after.pop(key, None)
        else:
            after[key] = value
    if len(after) > _MOST_METADATA:
        raise InvalidRequest(
            f"metadata: at most {_MOST_METADATA} pairs are kept; this would make {len(after)}"
        )
    return after


def _override_model(model: str | Mapping[str, Any] | None, before: Body) -> Body:
    if model is None:
        raise AgentModelRequired(
            "agent.model: the model can be replaced, not cleared (agent_model_required)"
        )
    given = {"id": model} if isinstance(model, str) else {**model}
    given.pop("effort", None)  # the effort of an override is ignored, as the hosted API does
    return _model(given, before=before)


def _model(model: str | Mapping[str, Any], *, before: Body | None = None) -> Body:
    given = {"id": model} if isinstance(model, str) else dict(model)
    effort = given.get("effort")
    if effort is None:
        same = before is not None and before["id"] == given["id"]
        effort = before["effort"] if before is not None and same else DEFAULT_EFFORT
    return {
        "id": given["id"],
        "effort": {"type": effort} if isinstance(effort, str) else effort,
        "speed": given.get("speed") or "standard",
        "inference_geo": given.get("inference_geo"),
    }


def _text(value: str | None) -> str | None:
    return value or None  # an empty string clears


def _tools(tools: Sequence[Body] | None) -> list[Body]:
    return [_tool(tool) for tool in tools or []]


def _tool(tool: Body) -> Body:
    if tool["type"] == "custom":
        return dict(tool)
    default = _default_config(tool.get("default_config") or {}, _POLICY[tool["type"]])
    configs = [_tool_config(config, default, tool["type"]) for config in tool.get("configs") or []]
    return {**tool, "default_config": default, "configs": configs}


def _default_config(given: Body, policy: str) -> Body:
    enabled = given.get("enabled")
    return {
        "enabled": True if enabled is None else enabled,
        "permission_policy": given.get("permission_policy") or {"type": policy},
    }


def _tool_config(given: Body, default: Body, toolset: str) -> Body:
    enabled = given.get("enabled")
    config = {
        **given,
        "enabled": default["enabled"] if enabled is None else enabled,
        "permission_policy": given.get("permission_policy") or default["permission_policy"],
    }
    if toolset == "agent_toolset_20260401":
        config["type"] = given["name"]
    if config.get("url_sources"):
        config["url_sources"] = {
            source: {"type": rule} if isinstance(rule, str) else rule
            for source, rule in config["url_sources"].items()
        }
    return config


def _servers(servers: Sequence[Body] | None, at: str = "") -> list[Body]:
    for i, server in enumerate(servers or []):
        address.checked(server["url"], f"{at}mcp_servers.{i}.url")
    return [dict(server) for server in servers or []]


def _skills(skills: Sequence[Body] | None, at: str = "") -> list[Body]:
    for i, skill in enumerate(skills or []):
        if skill["type"] != "custom":
            raise InvalidRequest(
                f"{at}skills.{i}: {skill['skill_id']!r} is one of Anthropic's own skills, which are not "
                "available here",
                hint="Upload a skill of your own to /v1/skills, and name it with the type `custom`.",
            )
    return [{**skill, "version": skill.get("version") or "latest"} for skill in skills or []]


def _identity(identity: Body | None) -> Body:
    if identity is not None and identity != _SERVICE_ACCOUNT:
        raise InvalidRequest(
            f"execution_identity: {identity['type']!r} is not served; agents run as this server",
            hint='Omit it, or send {"type": "service_account"}.',
        )
    return dict(_SERVICE_ACCOUNT)


_MEMBERS: Final = {"subagents": "enabled", "workflows": "enabled", "advisor": "disabled"}
_INLINE: Final = {"type": "enabled"}
_SUBAGENTS: Final[dict[str, Any]] = {"inline_agents": _INLINE, "predefined_agents": []}


def _multiagent(multiagent: Body | None) -> Body | None:
    """One agent alone, or one that starts subagents which it defines itself. Subagents and workflows are enabled by
    default; what is not served has to be disabled by name.
    """
    if multiagent is None:
        return None
    given = {
        member: multiagent.get(member) or {"type": usual} for member, usual in _MEMBERS.items()
    }
    enabled = [member for member, value in given.items() if value["type"] == "enabled"]
    _check_multiagent(multiagent["type"], enabled)
    if not enabled:
        return None
    for field, usual in _SUBAGENTS.items():
        if (given["subagents"].get(field) or usual) != usual:
            raise FieldNotServed(
                f"multiagent.subagents.{field}: only inline agents are served",
                hint="Omit it: the agent says what each subagent is to do.",
            )
    enabled_inline = {"type": "enabled", "inline_agents": dict(_INLINE), "predefined_agents": []}
    off = {"type": "disabled"}
    return {
        "type": multiagent["type"],
        "subagents": enabled_inline,
        "workflows": dict(off),
        "advisor": dict(off),
    }


def _check_multiagent(kind: str, enabled: Sequence[str]) -> None:
    if kind == "coordinator":
        raise FieldNotServed(
            "multiagent.type: sessions with several agents are not served, but for subagents",
            hint="Omit `multiagent`, send null, or use `multiagent_20261001` with `workflows` disabled.",
        )
    for member in ("workflows", "advisor"):
        if member in enabled:
            raise FieldNotServed(
                f"multiagent.{member}: not served",
                hint=f'Send `{member}` as {{"type": "disabled"}}, or omit `multiagent`.',
            )


_REPLACED: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "description": _text,
    "system": _text,
    "tools": _tools,
    "mcp_servers": _servers,
    "skills": _skills,
    "execution_identity": _identity,
    "multiagent": _multiagent,
}
_OVERRIDDEN: dict[str, Callable[[Any], Any]] = {
    "system": _text,
    "tools": _tools,
    "mcp_servers": partial(_servers, at="agent."),
    "skills": partial(_skills, at="agent."),
}


def _check(body: Body, at: str = "") -> None:
    """What only shows when all fields are seen together."""
    if len(encode(body)) > LARGEST_AGENT:
        raise InvalidRequest(f"{at}tools: the agent is larger than {LARGEST_AGENT:,} bytes in all")
    _check_names(body["tools"], at)
    _check_servers(body, at)
    for i, tool in enumerate(body["tools"]):
        if tool["type"] == "custom":
            _check_custom(tool, f"{at}tools.{i}")
        else:
            _check_configs(tool["configs"], f"{at}tools.{i}.configs")
    if body["skills"] and not _can_read(body["tools"]):
        raise InvalidRequest(
            f"{at}skills: skills need the `read` tool",
            hint="Add an agent_toolset_20260401 with `read` enabled to `tools`.",
        )


def _check_names(tools: Sequence[Body], at: str) -> None:
    names = [
        tool.get("name") or f"{tool['type']} {tool.get('mcp_server_name', '')}".strip()
        for tool in tools
    ]
    for i, name in _repeated(names):
        raise InvalidRequest(f"{at}tools.{i}: {name!r} appears more than once")


def _check_servers(body: Body, at: str) -> None:
    servers = [server["name"] for server in body["mcp_servers"]]
    for i, name in _repeated(servers):
        raise InvalidRequest(f"{at}mcp_servers.{i}.name: {name!r} appears more than once")
    used = {t["mcp_server_name"]: i for i, t in enumerate(body["tools"]) if "mcp_server_name" in t}
    for name, i in used.items():
        if name not in servers:
            raise InvalidRequest(
                f"{at}tools.{i}.mcp_server_name: no server in `mcp_servers` is named {name!r}"
            )
    for i, name in enumerate(servers):
        if name not in used:
            raise InvalidRequest(f"{at}mcp_servers.{i}: no `mcp_toolset` in `tools` uses {name!r}")


def _check_custom(tool: Body, at: str) -> None:
    if tool["name"] in _BUILT_IN or tool["name"].startswith("mcp__"):
        raise InvalidRequest(f"{at}.name: {tool['name']!r} is the name of a built-in tool")
    _check_schema(tool["input_schema"], f"{at}.input_schema")


def _check_schema(schema: Body, at: str) -> None:
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema:
            raise InvalidRequest(f"{at}.{word}: not allowed at the top level")
    for name in schema.get("properties") or {}:
        if not _PROPERTY.fullmatch(name):
            raise InvalidRequest(
                f"{at}.properties: names are 1 to 64 letters, digits, `_`, `.` or `-`"
            )
    _check_within(schema, at)


def _check_within(schema: Body, at: str) -> None:
    for value, depth in _walk(schema):
        if depth > _DEEPEST_SCHEMA:
            raise InvalidRequest(f"{at}: nested more than {_DEEPEST_SCHEMA} levels deep")
        if isinstance(value, dict) and "$ref" in value:
            raise InvalidRequest(f"{at}: `$ref` is not allowed")
        if isinstance(value, int) and abs(value) > _LARGEST_INT:
            raise InvalidRequest(f"{at}: a number does not fit into 64 bits")


def _walk(value: object) -> Iterator[tuple[object, int]]:
    """Every value within, with its depth; without recursion, since depth is the client's choice."""
    left = [(value, 0)]
    while left:
        here, depth = left.pop()
        yield here, depth
        if isinstance(here, dict):
            left.extend((child, depth + 1) for child in here.values())
        elif isinstance(here, list):
            left.extend((child, depth + 1) for child in here)


def _check_configs(configs: Sequence[Body], at: str) -> None:
    for i, name in _repeated([config["name"] for config in configs]):
        raise InvalidRequest(f"{at}.{i}.name: {name!r} appears more than once")
    for i, config in enumerate(configs):
        if "allowed_domains" in config and "blocked_domains" in config:
            raise InvalidRequest(
                f"{at}.{i}.blocked_domains: cannot be combined with allowed_domains"
            )
        for field in ("allowed_domains", "blocked_domains"):
            _check_domains(config, field, f"{at}.{i}.{field}")
        for source, rule in (config.get("url_sources") or {}).items():
            if rule not in ("all", {"type": "all"}):
                raise InvalidRequest(
                    f"{at}.{i}.url_sources.{source}: only 'all' is served",
                    hint="Use `allowed_domains`, or the environment's `networking`.",
                )


def _check_domains(config: Body, field: str, at: str) -> None:
    """Each is a host. One that is none would keep nothing out, and nobody would be told."""
    for i, domain in enumerate(config.get(field) or []):
        host = domain.partition("/")[0] if config["name"] == "web_search" else domain
        if not address.is_host(host):
            raise InvalidRequest(
                f"{at}.{i}: give a host such as `docs.example.com`, without scheme, port or `*`",
                hint="It stands for itself and all below it. Letters beyond ASCII have a form that "
                "begins with `xn--`. Only `web_search` takes a path behind it.",
            )


def _can_read(tools: Sequence[Body]) -> bool:
    for tool in tools:
        if tool["type"] == "agent_toolset_20260401":
            own = [config["enabled"] for config in tool["configs"] if config["name"] == "read"]
            return bool(own[0] if own else tool["default_config"]["enabled"])
    return False


def _repeated(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            yield i, name
        seen.add(name)
