"""`/roost/v1/harnesses`: the kinds of agents that sessions can have here, and what each of them can do."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness

RESOURCE: Final = Resource()


@RESOURCE.get("roost.harnesses.list", "/roost/v1/harnesses")
async def list_(call: ApiCall, choice: HarnessChoice) -> ASGIApp:
    """Every harness that this server knows, as it found them when it started."""
    found = [_view(known, choice.default) for known in choice.known.values()]
    return reply({"data": found, "next_page": None})


def _view(known: KnownHarness, default: str) -> dict[str, Any]:
    profile = known.profile
    lacks = {"message": known.missing, "hint": known.hint}
    return {
        "type": "harness",
        "name": known.name,
        "default": known.name == default,
        "available": known.version is not None,
        "version": known.version,
        "unavailable": None if known.missing is None else lacks,
        "needs_sandbox": None if profile is None else profile.needs_sandbox,
        "runs_tools": None if profile is None else profile.runs_tools,
        "upstream": None if profile is None else profile.upstream,
        "abilities": None if profile is None else asdict(profile.abilities),
    }
