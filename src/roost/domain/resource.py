"""What a session is given to work with besides its agent: files, and repositories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from roost.domain import address
from roost.errors import InvalidRequest

Resource = dict[str, Any]

UPLOADS: Final = "/mnt/session/uploads"
"""Where a sandbox shows the files of its session, read-only."""

OUTPUTS: Final = "/mnt/session/outputs"
"""Where an agent puts what it wants to hand over."""

SEALED_TOKEN: Final = "sealed_token"
"""Where a record that gives repositories to sessions has a repository's token."""

MOST: Final = 500
_WORKSPACE = "/workspace"
_LONGEST_PATH = 512
_LONGEST_TOKEN = 4096
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@+-]{0,254}")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
_NO_MORE = frozenset("?#")  # also with nothing behind them: what git asks for is put at the end
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,128}(/[A-Za-z0-9_.-]{1,128}){0,8}")


def mounted_file(mount_path: str | None, file_id: str, at: str) -> str:
    """Where a file is shown: below `UPLOADS`, wherever its path is said to begin.

    :raises InvalidRequest: naming the field
    """
    if mount_path is None:
        return f"{UPLOADS}/{file_id}"
    path = mount_path.removeprefix(UPLOADS).lstrip("/")
    return f"{UPLOADS}/{_plain(path, f'{at}mount_path')}"


def mounted_repository(mount_path: str | None, url: str, at: str) -> str:
    """Where a repository is: below `/workspace`. :raises InvalidRequest: naming the field"""
    if mount_path is None:
        return f"{_WORKSPACE}/{name_of(url)}"
    below = mount_path.removeprefix(f"{_WORKSPACE}/")
    if below == mount_path:
        raise InvalidRequest(f"{at}mount_path: repositories are below {_WORKSPACE}/")
    return f"{_WORKSPACE}/{_plain(below, f'{at}mount_path')}"


def name_of(url: str) -> str:
    """What a repository is called."""
    return urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"


def checked_url(url: str, allowed: Iterable[str], at: str) -> str:
    """A repository's address, if the operator allows it. :raises InvalidRequest: naming the field"""
    parts = address.checked(url, f"{at}url")
    path = parts.path.strip("/")
    words = path.split("/")
    if (
        not _NO_MORE.isdisjoint(url)
        or not _REPOSITORY.fullmatch(path)
        or any(w in (".", "..") for w in words)
    ):
        raise InvalidRequest(
            f"{at}url: give the address of a repository, such as https://github.com/owner/name"
        )
    if not any(url.startswith(f"{prefix.rstrip('/')}/") for prefix in allowed):
        raise InvalidRequest(
            f"{at}url: repositories from there are not allowed here",
            hint="The operator sets ROOST_GIT_URLS.",
        )
    return url.rstrip("/")


def checked_checkout(checkout: Mapping[str, Any] | None, at: str) -> dict[str, Any] | None:
    """What to check out. :raises InvalidRequest: naming the field"""
    if checkout is None:
        return None
    if checkout["type"] == "branch":
        name = checkout["name"]
        if not _BRANCH.fullmatch(name) or ".." in name or name.endswith((".", "/", ".lock")):
            raise InvalidRequest(f"{at}checkout.name: not the name of a branch")
    elif not _COMMIT.fullmatch(checkout["sha"]):
        raise InvalidRequest(f"{at}checkout.sha: give 7 to 64 hexadecimal digits")
    return dict(checkout)


def checked_token(token: str, at: str = "") -> str:
    """A token that a header can carry. :raises InvalidRequest: without the token in it"""
    if not 0 < len(token) <= _LONGEST_TOKEN or not all("!" <= letter <= "~" for letter in token):
        raise InvalidRequest(f"{at}authorization_token: empty, too long, or not plain characters")
    return token


def about_token(tenant: str, owner: str, resource: str) -> str:
    """What a repository's token is sealed as: in another's record it does not open.

    It is a session's, for a resource by its id, or a deployment's, for an address.
    """
    return f"token {tenant} {owner} {resource}"


def shown(kept: Resource) -> Resource:
    """What is shown of a resource that a record keeps: all but its token."""
    return {name: kept[name] for name in kept if name != SEALED_TOKEN}


def check_together(resources: Sequence[Resource]) -> None:
    """That none is in another one's place. :raises InvalidRequest:"""
    if len(resources) > MOST:
        raise InvalidRequest(f"resources: a session has at most {MOST}")
    seen: list[PurePosixPath] = []
    for resource in sorted(resources, key=lambda each: str(each["mount_path"])):
        path = PurePosixPath(resource["mount_path"])
        if any(path.is_relative_to(other) for other in seen):
            raise InvalidRequest(f"resources: two of them would be at {path}")
        seen.append(path)


def files_of(resources: Sequence[Resource]) -> dict[str, str]:
    """The files among resources: where each is below `UPLOADS`, and its id."""
    return {
        resource["mount_path"].removeprefix(f"{UPLOADS}/"): resource["file_id"]
        for resource in resources
        if resource["type"] == "file"
    }


def repositories_of(resources: Sequence[Resource]) -> list[Resource]:
    """The repositories among resources."""
    return [resource for resource in resources if resource["type"] == "github_repository"]


def _plain(path: str, field: str) -> str:
    parts = path.split("/")
    wrong = any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
    if not path or wrong or len(path) > _LONGEST_PATH or not path.isprintable():
        raise InvalidRequest(f"{field}: give a path such as `/data.csv`, without `.` or `..` in it")
    return path
