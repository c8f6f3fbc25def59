"""When records that have a schedule are due: the same for deployments and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from roost.core.records.timezones import timezone_of
from roost.domain import schedule
from roost.domain.events import Micros
from roost.domain.schedule import Schedule
from roost.errors import InvalidRequest
from roost.ports.catalog import Record
from roost.ports.runs import Runs

SCHEDULES: Final = "schedules"
"""The topic that is notified when a record may be due earlier than it was."""

_UPCOMING: Final = 5


class Times(msgspec.Struct, frozen=True):
    """When a record's schedule has started a session last, and when it will next."""

    last: Micros | None
    upcoming: Sequence[Micros]


class Timetable:
    """Reads schedules by a clock, which is the machine's: they go by what clocks show."""

    def __init__(self, runs: Runs, clock: Callable[[], Micros]) -> None:
        self._runs = runs
        self._clock = clock

    def check(self, body: Mapping[str, Any]) -> None:
        """Refuse a schedule that can never come. :raises InvalidRequest: naming the field"""
        found = schedule_of(body)
        if found is not None and found.next(self._clock()) is None:
            raise InvalidRequest("schedule.expression: there is no such day")

    def due(self, body: Mapping[str, Any]) -> Micros | None:
        """When such a record is due; None: it is paused, or has no schedule."""
        found = None if body["paused_reason"] else schedule_of(body)
        return None if found is None else found.next(self._clock())

    async def times(self, records: Sequence[Record]) -> list[Times]:
        """When each has run, and runs next."""
        last = await self._runs.last_started([record.id for record in records])
        now = self._clock()
        return [Times(last.get(record.id), _upcoming(record, now)) for record in records]


def schedule_of(body: Mapping[str, Any]) -> Schedule | None:
    """A record's schedule, if it has one. :raises InvalidRequest: naming the field"""
    if body["schedule"] is None:
        return None
    zone = timezone_of(body["schedule"]["timezone"], "schedule.timezone")
    return schedule.schedule_of(body, zone)


def _upcoming(record: Record, now: Micros) -> list[Micros]:
    found = None if record.archived_at is not None else schedule_of(record.body)
    return [] if found is None else found.upcoming(now, _UPCOMING)
