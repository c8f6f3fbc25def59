"""What resources that have a schedule show of it and of their runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from msgspec.structs import replace
from pydantic import Field

from roost.api.framework.paging import DEFAULT_PAGE, Cursor, cursor_in, cut, page
from roost.core.records.timetable import Times
from roost.domain.events import iso
from roost.domain.schedule import LONGEST_WINDOW, Missed
from roost.ports.runs import Run, RunQuery


class MissedRunsParams(TypedDict, total=False):
    """What happens to times at which no server was there."""

    policy: Missed
    window_seconds: Annotated[int, Field(ge=60, le=LONGEST_WINDOW)]


async def run_page(
    asked: dict[str, Any],
    found: Callable[[RunQuery], Awaitable[list[Run]]],
    query: RunQuery,
    of: str,
    view: Callable[[Run], dict[str, Any]],
) -> dict[str, Any]:
    """A page of runs, as the request asks for it."""
    cursor = cursor_in(asked, of, "desc")
    limit = asked.get("limit", DEFAULT_PAGE)
    after = None if cursor is None else str(cursor.after)
    shown, more = cut(await found(replace(query, after=after, limit=limit + 1)), limit)
    last = None
    if more:
        last = Cursor(of=of, order="desc", after=shown[-1].id, at=shown[-1].created_at)
    return page([view(each) for each in shown], last)


def schedule_view(schedule: dict[str, Any] | None, when: Times) -> dict[str, Any] | None:
    """A schedule, with when it has run last and when it runs next."""
    if schedule is None:
        return None
    return {
        **schedule,
        "last_run_at": None if when.last is None else iso(when.last),
        "upcoming_runs_at": [iso(each) for each in when.upcoming],
    }


def skip_view(body: dict[str, Any]) -> dict[str, Any]:
    """Why a run was skipped, and which times it stands for."""
    since = body["since"]
    return {
        "reason": body["reason"],
        "count": body["count"],
        "since": None if since is None else iso(since),
    }
