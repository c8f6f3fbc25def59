"""What a named workspace is set up as: its name, its settings, and who may do what with it.

A workspace is a thing of its own, which sessions come to and leave. Its files are elsewhere: see
`ports.workspaces`. Here is only what its owner configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from roost.domain.session import MountScope, TrustLevel
from roost.errors import InvalidRequest

PREFIX: Final = "wksp"
EVERYONE: Final = "everyone"
"""Whom a permission is for that every key of the tenant has."""

Access = Literal["read", "write", "admin"]
Writers = Literal["allowed", "serialised"]
Body = dict[str, Any]

_RANK: Final = {"read": 1, "write": 2, "admin": 3}
_MOST_PERMISSIONS: Final = 1000


class WorkspacePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a workspace is to be treated.

    `quota_bytes` is what its files may take, None for no limit of its own. `keep_snapshots` and
    `keep_days` say which snapshots stay; the newest always does. `mount_scope` is for sessions that
    name none, None to leave it to their environment. `trust_levels` are let in. `writers`: may turns of
    several sessions overlap, or does one wait for the other.
    """

    quota_bytes: int | None = None
    keep_snapshots: int = 100
    keep_days: int | None = None
    mount_scope: MountScope | None = None
    trust_levels: tuple[TrustLevel, ...] = ("sandboxed",)
    writers: Writers = "allowed"


def created(params: Mapping[str, Any], creator: str) -> Body:
    """The body of a new workspace, whose creator may do all with it. :raises InvalidRequest:"""
    settings = _settings({}, params.get("settings") or {})
    return {
        "name": _name(params["name"]),
        "description": params.get("description") or "",
        "settings": settings,
        "permissions": {creator: "admin"},
    }


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body with what the params change. :raises InvalidRequest:"""
    after = dict(body)
    if "name" in params:
        after["name"] = _name(params["name"])
    if "description" in params:
        after["description"] = params["description"] or ""
    if "settings" in params:
        after["settings"] = _settings(body["settings"], params["settings"])
    return after


def shared(body: Body, whom: str, access: Access | None) -> Body:
    """The body with somebody's permission set, or taken away. :raises InvalidRequest: too many"""
    others = {who: what for who, what in body["permissions"].items() if who != whom}
    permissions = others if access is None else {**others, whom: access}
    if len(permissions) > _MOST_PERMISSIONS:
        raise InvalidRequest(f"a workspace has at most {_MOST_PERMISSIONS} permissions")
    return {**body, "permissions": permissions}


def settings_of(body: Body) -> WorkspacePolicy:
    """The settings, each with its default."""
    return msgspec.convert(body["settings"], WorkspacePolicy)


def may(body: Body, whom: str, access: Access, *, administrator: bool) -> bool:
    """Whether a key of the workspace's tenant may do that. Administrators may do all."""
    if administrator:
        return True
    permissions = body["permissions"]
    given = (permissions.get(whom), permissions.get(EVERYONE))
    return any(_RANK[access] <= _RANK.get(what or "", 0) for what in given)


def _name(name: str) -> str:
    if name.startswith(f"{PREFIX}_"):
        raise InvalidRequest(f"name: {PREFIX}_ begins an id, so a name cannot begin with it")
    if name != name.strip() or not name.isprintable():
        raise InvalidRequest("name: printable characters, without spaces at either end")
    return name


def _settings(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was set is kept, so that a default may change. None takes a setting back."""
    merged = {**before, **changes}
    kept = {name: value for name, value in merged.items() if value is not None}
    if kept.get("trust_levels", True) == []:
        raise InvalidRequest("settings.trust_levels: name at least one")
    return kept
