"""Whether an input that a person gives to a tool, instead of the agent's own, is one that it can take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "bash": ("command",),
    "read": ("file_path",),
    "write": ("file_path", "content"),
    "edit": ("file_path", "old_string", "new_string"),
    "glob": ("pattern",),
    "grep": ("pattern",),
    "web_fetch": ("url",),
    "web_search": ("query",),
}
"""The texts that each of the agent's own tools cannot do without."""

_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "bash": ("description", "timeout", "timeout_ms", "run_in_background", "restart"),
    "read": ("offset", "limit", "view_range", "pages"),
    "edit": ("replace_all",),
    "glob": ("path",),
    "grep": (
        *("path", "glob", "type", "output_mode", "context", "multiline", "head_limit", "offset"),
        *("-A", "-B", "-C", "-i", "-n", "-o"),
    ),
    "web_fetch": ("prompt",),
    "web_search": ("allowed_domains", "blocked_domains"),
}


def misfit(tool: str, asked: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What is wrong with an input for a tool that was called with another one; None if nothing is.

    Of a tool that is not the agent's own, only that call is known: what it had as text, say, stays text.
    """
    needed = _NEEDED.get(tool, ())
    for name in needed:
        if not isinstance(given.get(name), str):
            return f"{name}: the tool {tool} needs it, as a text"
    known = {*needed, *_OPTIONAL.get(tool, ()), *asked}
    for name, value in given.items():
        if needed and name not in known:
            return f"{name}: the tool {tool} does not take it; it takes {', '.join(sorted(known))}"
        if name in asked and _kind(asked[name]) != _kind(value):
            return f"{name}: is {_kind(value)}, and the agent's own is {_kind(asked[name])}"
    if asked and not given:
        return "must not be empty"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")
