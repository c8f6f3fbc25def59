"""Puts a session's repositories into its workspace, before its agent starts.

Git runs inside the session's own sandbox, with its limits, as whatever the agent will run: a hostile
repository (links, hooks, filters, too much of everything) meets the same walls. It asks for the repository
under its own address, which leads to the egress, and the token is put on there. A repository that is there
already is left alone; one that was being cloned when something died is begun again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import anyio

from roost.domain.events import Draft
from roost.domain.resource import Resource, repositories_of
from roost.ports.drafts import new_draft
from roost.ports.sandbox import Sandbox

_SECONDS: Final = 600.0
_CHECKOUT_FAILED: Final = 11
_NO_GIT: Final = 12
_log = logging.getLogger(__name__)

# No hooks, filters or settings of anybody's: only what is asked for here.
_ENVIRON: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TEMPLATE_DIR": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
_SCRIPT: Final = f"""
target=$1 fresh=$2 url=$3 what=$4
exec >/dev/null </dev/null
[ -e "$target" ] || [ -L "$target" ] && exit 0
command -v git || exit {_NO_GIT}
rm -rf -- "$fresh" && mkdir -p -- "${{target%/*}}" || exit 10
git -c core.hooksPath=/dev/null clone --quiet --no-checkout -- "$url" "$fresh" || exit 10
if [ -n "$what" ] || git -C "$fresh" rev-parse --quiet --verify HEAD; then
    git -C "$fresh" -c core.hooksPath=/dev/null checkout --quiet $what -- || exit {_CHECKOUT_FAILED}
fi
mv -T -- "$fresh" "$target" || exit 10
"""

_SIGNS: Final = (
    ("error: 403", "repository_forbidden_error", "the host refuses access to it"),
    ("error: 401", "repository_authentication_error", "the host does not accept the token"),
    (
        "Authentication failed",
        "repository_authentication_error",
        "the host does not accept the token",
    ),
    ("could not read Username", "repository_authentication_error", "the host asks for a token"),
    ("not found", "repository_not_found_error", "the host does not know it"),
    ("error: 404", "repository_not_found_error", "the host does not know it"),
)


async def cloned(sandbox: Sandbox, resources: Sequence[Resource]) -> list[Draft]:
    """Clone what is not there yet; gives a `session.error` for each that could not be had.

    :raises SandboxFailed: the sandbox broke
    """
    lacks = []
    for resource in repositories_of(resources):
        if error := await _cloned(sandbox, resource):
            _log.warning("cannot clone: %s", error["type"], extra={"action": "clone"})
            lacks.append(new_draft("session.error", error=error))
    return lacks


async def _cloned(sandbox: Sandbox, resource: Resource) -> dict[str, Any] | None:
    fresh = f"/workspace/.clone-{resource['id']}"
    checkout = resource["checkout"] or {}
    what = checkout.get("name") or checkout.get("sha") or ""
    words = [_SCRIPT, "clone", resource["mount_path"], fresh, resource["url"], what]
    process = await sandbox.spawn(["/bin/sh", "-c", *words], environ=_ENVIRON, cwd="/workspace")
    with anyio.move_on_after(_SECONDS):
        code = await process.wait()
        return _judged(code, process.errors().decode(errors="replace"), resource, what)
    process.signal(9)
    return _error(resource, "repository_clone_error", "it took too long")


def _judged(code: int, said: str, resource: Resource, what: str) -> dict[str, Any] | None:
    if code == 0:
        return None
    if code == _CHECKOUT_FAILED:
        return _error(resource, "repository_checkout_error", f"it has no {what or 'such commit'}")
    if code == _NO_GIT:
        return _error(resource, "repository_clone_error", "the sandbox has no git")
    for sign, kind, why in _SIGNS:
        if sign in said:
            return _error(resource, kind, why)
    return _error(resource, "repository_clone_error", "it could not be cloned")


def _error(resource: Resource, kind: str, why: str) -> dict[str, Any]:
    url = resource["url"]
    return {
        "type": kind,
        "message": f"repository {url}: {why}; the agent works without it",
        "repository_url": url,
        "retry_status": {"type": "retrying"},
    }
