"""The command `roost workspaces`, which lists, makes and deletes named workspaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from roost.cli.client import ApiClient, Json, at
from roost.cli.screen import clean
from roost.cli.table import print_json, print_table, when
from roost.errors import InvalidRequest, NotFound

_ALL: Final = "/roost/v1/workspaces"
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DEFAULT: Final = "default"


def settings_given(
    quota: str | None,
    keep_snapshots: str | None,
    keep_days: str | None,
    mount_scope: str | None,
    trust_levels: str | None,
    writers: str | None,
) -> dict[str, Any]:
    """What was said on the command line, as the API has it; `default` is null there."""
    said: dict[str, tuple[str | None, Callable[[str], Any]]] = {
        "quota_bytes": (quota, _bytes),
        "keep_snapshots": (keep_snapshots, _number),
        "keep_days": (keep_days, _number),
        "mount_scope": (mount_scope, str),
        "trust_levels": (trust_levels, lambda text: text.split(",")),
        "writers": (writers, str),
    }
    return {
        name: None if text == _DEFAULT else meant(text)
        for name, (text, meant) in said.items()
        if text is not None
    }


def print_workspaces(client: ApiClient, *, limit: int, as_json: bool) -> None:
    """Print a table of the newest workspaces."""
    found = list(islice(client.pages(_ALL, {"limit": min(limit, 100)}), limit))
    if as_json:
        print_json(found)
        return
    columns = ["id", "name", "quota", "writers", "trust", "created", "description"]
    print_table(columns, [_row(workspace) for workspace in found])


def create_workspace(
    client: ApiClient, name: str, description: str | None, settings: Json, *, as_json: bool
) -> None:
    """Make one and print its id."""
    body: Json = {"name": name, "settings": settings}
    if description is not None:
        body["description"] = description
    made = client.post(_ALL, body)
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def change_workspace(client: ApiClient, workspace: str, changes: Json, *, as_json: bool) -> None:
    """Change it, if there is something to change, and print it."""
    path = _path(client, workspace)
    _print(client.post(path, changes) if changes else client.get(path), as_json=as_json)


def share_workspace(
    client: ApiClient,
    workspace: str,
    key: str | None,
    *,
    everyone: bool,
    access: str,
    as_json: bool,
) -> None:
    """Set a permission, and print who may do what."""
    if (key is None) is not everyone:
        raise InvalidRequest("name a key, or say --everyone", hint="`roost key ls` lists keys.")
    whom: Json = {"everyone": True} if everyone else {"key_id": key}
    answer = client.post(f"{_path(client, workspace)}/permissions", {**whom, "access": access})
    _print(answer, as_json=as_json)


def remove_workspaces(
    client: ApiClient, workspaces: Sequence[str], *, force: bool, as_json: bool
) -> None:
    """Delete each; the first that cannot be deleted ends it."""
    for workspace in workspaces:
        suffix = "?force=true" if force else ""
        answer = client.delete(f"{_path(client, workspace)}{suffix}")
        if as_json:
            print_json(answer)
        else:
            print(f"deleted {answer['id']}")


def _path(client: ApiClient, word: str) -> str:
    """Where a workspace is. A name may be anything, so it is looked up rather than put into a path."""
    if not word.startswith("wksp_"):
        named = (w["id"] for w in client.pages(_ALL, {"limit": 100}) if w["name"] == word)
        found = next(named, None)
        if found is None:
            raise NotFound(f"there is no workspace {word!r}", hint="`roost workspaces ls`")
        word = found
    return at("roost", "v1", "workspaces", word)


def _print(workspace: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(workspace)
        return
    shown = {name: workspace[name] for name in ("id", "name", "description")}
    shown |= {name: _said(value) for name, value in workspace["settings"].items()}
    for permission in workspace["permissions"]:
        shown[permission.get("key_id", permission["type"])] = permission["access"]
    for name, value in shown.items():
        print(f"{clean(name):<15} {clean(str(value))}".rstrip())


def _row(workspace: Json) -> list[str]:
    settings = workspace["settings"]
    return [
        workspace["id"],
        workspace["name"],
        _said(settings["quota_bytes"]),
        settings["writers"],
        _said(settings["trust_levels"]),
        when(workspace["created_at"]),
        workspace["description"],
    ]


def _said(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return "-" if value is None else str(value)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)B?", text.strip().upper())
    if found is None:
        raise InvalidRequest(f"--quota: {text!r} is no size", hint="For example: 500MB, 20GB.")
    return int(found[1]) * _UNITS[found[2]]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InvalidRequest(f"{text!r} is no number", hint="Or say `default`.")
    return int(text)
