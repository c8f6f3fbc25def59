"""Cron expressions of five fields, and the moments at which they match in a time zone.

A minute matches if the clock on the wall shows it: what a change of the clock leaves out does not happen, and what
it repeats happens twice. No library for Python does exactly that, so this is our own, held to a reference that
looks at every minute (`tests/unit/test_cron.py`).

`day of month` and `day of week` are two ways to name a day. If both are given, either of them is enough; if one
begins with `*`, both must match, which is the rule of Vixie cron: `0 0 1-7 * */7` is the first Sunday.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from roost.domain.events import Micros
from roost.errors import InvalidRequest

_LONGEST: Final = 256
_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SEARCHED: Final = timedelta(days=366 * 41)
"""A 29th of February on one day of the week can be forty years away."""

_BEFORE_MIDNIGHT: Final = timedelta(hours=25)
"""A date begins no more than 14 hours before it does in UTC, and a clock set back adds less than the rest."""

_MONTHS: Final = (
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
)
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ITEM: Final = re.compile(
    r"(\*|(?P<first>[0-9A-Z]{1,3})(?:-(?P<last>[0-9A-Z]{1,3}))?)(?:/(?P<step>[0-9]{1,3}))?"
)


class _Field(NamedTuple):
    """What one of the five fields may have in it. `most` may be given and is not part of `*`."""

    name: str
    least: int
    last: int
    most: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, 59, {}),
    _Field("hour", 0, 23, 23, {}),
    _Field("day of month", 1, 31, 31, {}),
    _Field("month", 1, 12, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 6, 7, {name: number for number, name in enumerate(_DAYS)}),
)


class Cron(NamedTuple):
    """An expression that was read: the numbers that each field lets through, as bits."""

    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    either_day: bool
    """Whether one of `days` and `weekdays` is enough."""

    def matches(self, moment: Micros, zone: tzinfo) -> bool:
        """Whether it happens in the minute that begins at this moment."""
        return self._shown(_moment(moment).astimezone(zone))

    def after(self, moment: Micros, zone: tzinfo) -> Iterator[Micros]:
        """When it happens later than that, in order; nothing if it does not within forty years.

        It goes from hour to hour in UTC, in which each moment is there once and in its order, and asks what the
        clocks of the zone show. Days that cannot match are passed over at once.
        """
        begun = _moment(moment)
        hour = begun.replace(minute=0, second=0, microsecond=0)
        end = hour + _SEARCHED
        while hour < end:
            first, last = hour.astimezone(zone), (hour + 59 * _MINUTE).astimezone(zone)
            if self._has_day(first) or self._has_day(last):
                for when in self._within(hour, first, last):
                    if when > begun:
                        yield (when - _EPOCH) // timedelta(microseconds=1)
                hour += _HOUR
                continue
            # A clock that is set back at midnight shows the day before again.
            day = self._next_day(first.date() - _DAY, end.date() + _DAY)
            if day is None:
                return
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            hour = max(hour + _HOUR, midnight - _BEFORE_MIDNIGHT)

    def _within(self, hour: datetime, first: datetime, last: datetime) -> Iterator[datetime]:
        """The minutes of an hour that match. Where the clock is not changed, they follow each other."""
        if first.utcoffset() != last.utcoffset():
            minutes = [hour + n * _MINUTE for n in range(60)]
            yield from (each for each in minutes if self._shown(each.astimezone(first.tzinfo)))
        elif self.hours >> first.hour & 1 or self.hours >> last.hour & 1:
            shown = first.replace(tzinfo=None)
            for n in range(60):
                if self._shown(shown + n * _MINUTE):
                    yield hour + n * _MINUTE

    def _shown(self, clock: datetime) -> bool:
        """Whether the expression lets through what a clock shows."""
        return bool(
            self.minutes >> clock.minute & 1
            and self.hours >> clock.hour & 1
            and self._has_day(clock)
        )

    def _has_day(self, day: date) -> bool:
        if not self.months >> day.month & 1:
            return False
        in_month, in_week = self.days >> day.day & 1, self.weekdays >> day.isoweekday() % 7 & 1
        return bool(in_month or in_week if self.either_day else in_month and in_week)

    def _next_day(self, day: date, end: date) -> date | None:
        while day < end:
            if self._has_day(day):
                return day
            if self.months >> day.month & 1:
                day += _DAY
            else:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
        return None


def parsed(expression: str, at: str) -> Cron:
    """The expression, read. :raises InvalidRequest: naming the field `at`, and what is wrong in it"""
    words = expression.split()
    if len(expression) > _LONGEST or not expression.isascii() or len(words) != len(_FIELDS):
        raise InvalidRequest(
            f"{at}: give five fields: minute, hour, day of month, month, day of week",
            hint="`0 9 * * 1-5` is nine o'clock from Monday to Friday. Shortcuts such as `@daily`, seconds, years "
            "and the letters L, W, # and ? are not served.",
        )
    bits = [_bits(word.upper(), field, at) for word, field in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = bits
    if weekdays >> 7 & 1:
        weekdays |= 1  # 7 is Sunday, too
    either = not words[2].startswith("*") and not words[4].startswith("*")
    return Cron(minutes, hours, days, months, weekdays, either)


def _bits(word: str, field: _Field, at: str) -> int:
    bits = 0
    for item in word.split(","):
        found = _ITEM.fullmatch(item)
        numbers = None if found is None else _numbers(found, field)
        if not numbers:
            raise InvalidRequest(
                f"{at}: {item[:20]!r} is not a {field.name}: give {field.least} to {field.most}, a range such as "
                f"`{field.least}-{field.last}`, `*`, or any of them with a step such as `/2`"
            )
        for number in numbers:
            bits |= 1 << number
    return bits


def _numbers(found: re.Match[str], field: _Field) -> range | None:
    """What an item stands for; None or nothing: it is wrong."""
    first, last, step = found["first"], found["last"], found["step"]
    if first is None:
        least: int | None = field.least
        most: int | None = field.last
    else:
        least = _number(first, field)
        most = least if step is None else max(field.last, least or 0)
        if last is not None:
            most = _number(last, field)
    by = 1 if step is None else int(step)
    if least is None or most is None or not by:
        return None
    return range(least, most + 1, by)


def _number(word: str, field: _Field) -> int | None:
    number = field.names.get(word)
    if number is None and word.isdigit():
        number = int(word)
    return number if number is not None and field.least <= number <= field.most else None


def _moment(moment: Micros) -> datetime:
    return _EPOCH + timedelta(microseconds=moment)
