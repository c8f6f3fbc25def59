"""What the commands of `roost pool` do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from roost.cli.client import ApiClient, Json, at
from roost.cli.names import ENVIRONMENTS, id_of, named_or_made
from roost.cli.screen import clean
from roost.cli.table import print_json, print_table, when
from roost.cli.transfer import downloaded
from roost.errors import InvalidRequest

_POOLS: Final = "/roost/v1/pools"
_VERSION: Final = "2025-10-02-preview"
_ENVIRONMENT: Final = "roost-pool"
_SHOWN: Final = (
    *("name", "id", "environment_id", "cooldown_seconds", "max_alive_seconds"),
    *("max_sessions", "ready_sessions"),
)


def create_pool(
    client: ApiClient, environment: str | None, given: Mapping[str, Any], *, as_json: bool
) -> None:
    """Make one, and print its address."""
    where = (
        named_or_made(client, "environments", {"name": _ENVIRONMENT})["id"]
        if environment is None
        else id_of(client, environment, ENVIRONMENTS)
    )
    body = {name: value for name, value in given.items() if value is not None}
    made = client.post(_POOLS, {**body, "environment_id": where})
    if as_json:
        print_json(made)
    else:
        print(f"{client.base_url}{_path(made['name'])}")


def print_pools(client: ApiClient, *, as_json: bool) -> None:
    """All of them, newest first."""
    found = list(client.pages(_POOLS, {"limit": 100}))
    if as_json:
        print_json(found)
        return
    columns = ["name", "environment_id", "cooldown_seconds", "max_sessions", "ready_sessions"]
    rows = [
        [*(str(each[column]) for column in columns), when(each["created_at"])] for each in found
    ]
    print_table(["name", "environment", "cooldown", "most", "ready", "created"], rows)


def show_pool(client: ApiClient, name: str, *, as_json: bool) -> None:
    """One, with its sessions."""
    pool = client.get(_path(name))
    sessions = client.get(_path(name, "listSessions"))["sessions"]
    if as_json:
        print_json({**pool, "sessions": sessions})
        return
    for field in _SHOWN:
        print(f"{field:<18} {'-' if pool[field] is None else clean(str(pool[field]))}")
    if sessions:
        print()
        columns = ["identifier", "createdAt", "lastAccessedAt", "expireAt"]
        rows = [
            [each["identifier"], *(when(each[column]) for column in columns[1:])]
            for each in sessions
        ]
        print_table(["id", "created", "used", "let go"], rows)


def remove_pools(client: ApiClient, names: Sequence[str], *, as_json: bool) -> None:
    """Delete each; the first that cannot be deleted ends it."""
    for name in names:
        answer = client.delete(_path(name))
        if as_json:
            print_json(answer)
        else:
            print(f"deleted {clean(name)}")


def run_code(
    client: ApiClient,
    pool: str,
    identifier: str,
    code: str | None,
    limit: Json,
    *,
    is_shell: bool,
    as_json: bool,
) -> bool:
    """Run it, and print what came of it. Whether it worked."""
    if code is None:
        if sys.stdin.isatty():
            raise InvalidRequest("there is no code", hint="Give it as an argument, or by a pipe.")
        code = sys.stdin.read()
    body = {"shellCommand" if is_shell else "code": code, **limit}
    told = client.post(_of(pool, identifier, "executions"), body, takes_long=True)
    worked = told["status"] in ("Succeeded", "0")
    if as_json:
        print_json(told)
        return worked
    result = told["result"]
    sys.stdout.write(result["stdout"])
    sys.stdout.flush()
    sys.stderr.write(result["stderr"])
    value = result["executionResult"]
    if isinstance(value, dict):
        print(f"[{value['format']} image; --json has it]", file=sys.stderr)
    elif value not in ("", None):
        print(value)
    return worked


def print_files(client: ApiClient, pool: str, identifier: str, *, as_json: bool) -> None:
    """All files of a session, with those in directories."""
    found = client.get(f"{_of(pool, identifier, 'files')}&recursive=true")["value"]
    if as_json:
        print_json(found)
        return
    files = [each for each in found if each["type"] == "file"]
    rows = [[_name(each), str(each["sizeInBytes"]), when(each["lastModifiedAt"])] for each in files]
    print_table(["name", "bytes", "changed"], sorted(rows))


def upload_file(
    client: ApiClient, pool: str, identifier: str, file: Path, remote: str, *, as_json: bool
) -> None:
    """Put it there."""
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}")
    with file.open("rb") as content:
        made = client.upload(_of(pool, identifier, "files"), "file", content, {}, remote)
    if as_json:
        print_json(made)
    else:
        print(f"/mnt/data/{clean(_name(made))}")


def download_file(client: ApiClient, pool: str, identifier: str, remote: str, output: Path) -> None:
    """Get it; whole, or not there."""
    path = f"{_path(pool)}/files/content/{quote(remote.strip('/'))}"
    params = {"identifier": identifier, "api-version": _VERSION}
    downloaded(client, path, params, output)


def _name(file: Json) -> str:
    return str(file["name"] if file["directory"] == "." else f"{file['directory']}/{file['name']}")


def _path(pool: str, *more: str) -> str:
    return at("roost", "v1", "pools", pool, *more)


def _of(pool: str, identifier: str, operation: str) -> str:
    named = quote(identifier, safe="")
    return f"{_path(pool, operation)}?identifier={named}&api-version={_VERSION}"
