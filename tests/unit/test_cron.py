"""Cron expressions, held to a reference that asks of every single minute what the clocks show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.domain.cron import parsed
from roost.errors import InvalidRequest

MINUTE = 60_000_000
DAY = 1440 * MINUTE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "Australia/Lord_Howe",  # half an hour
    "Antarctica/Troll",  # two hours
    "America/Havana",  # back at midnight: a date begins twice
    "America/Santiago",  # forward at midnight: a date begins at one
    "Africa/Cairo",
    "Pacific/Apia",  # 30 December 2011 did not happen
    "America/St_Johns",  # until 2011 one minute after midnight
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
)
EXPRESSIONS = (
    "30 2 * * *",
    "0 * * * *",
    "*/15 0-3 * * *",
    "15 */2 * * *",
    "0 0 * * *",
    "59 23 30 12 *",
    "30 1 1-7 * 0",
    "30 1 1-7 * */7",
    "0 0 29 2 *",
    "5 4 * 3,11 sun",
)


def micros(*at: int) -> int:
    return (datetime(*at, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def text(moments: list[int]) -> list[str]:
    return [f"{EPOCH + timedelta(microseconds=each):%Y-%m-%dT%H:%M}" for each in moments]


def numbers(word: str, least: int, most: int, names: str = "") -> set[int]:
    """What a field lets through, read once more and in another way."""
    found: set[int] = set()
    for item in word.lower().split(","):
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        for number, name in enumerate(names.split(), least):
            first, last = first.replace(name, str(number)), last.replace(name, str(number))
        if first == "*":
            begin, end = least, most
        else:
            begin = int(first)
            end = int(last) if dash else max(most, begin) if step else begin
        found |= set(range(begin, end + 1)[:: int(step or 1)])
    return found


def reference(expression: str, zone: str, begin: int, end: int) -> Iterator[int]:
    """Every minute of UTC in a stretch at which the clocks of a zone show what the expression asks for."""
    minute, hour, day, month, week = expression.split()
    minutes, hours, days = numbers(minute, 0, 59), numbers(hour, 0, 23), numbers(day, 1, 31)
    months = numbers(month, 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec")
    weeks = {each % 7 for each in numbers(week, 0, 6, "sun mon tue wed thu fri sat")}
    for at, (month_, day_, week_, hour_, minute_) in shown(zone, begin, end):
        if month_ in months and hour_ in hours and minute_ in minutes:
            dom, dow = day_ in days, week_ in weeks
            if dom and dow if "*" in (day[0], week[0]) else dom or dow:
                yield at


@cache
def shown(zone: str, begin: int, end: int) -> list[tuple[int, tuple[int, ...]]]:
    first, here = begin - begin % MINUTE + MINUTE, ZoneInfo(zone)
    found = []
    for at in range(first, end + 1, MINUTE):
        local = (EPOCH + timedelta(microseconds=at)).astimezone(here)
        clock = local.month, local.day, local.isoweekday() % 7, local.hour, local.minute
        found.append((at, clock))
    return found


def ours(expression: str, zone: str, begin: int, end: int) -> list[int]:
    times = parsed(expression, "e").after(begin, ZoneInfo(zone))
    return list(takewhile(lambda at: at <= end, times))


def changes(zone: str, first: int, last: int) -> list[int]:
    """When the clocks of a zone are changed, to the hour before."""
    here, found = ZoneInfo(zone), []
    hours = range(micros(first, 1, 1), micros(last, 1, 1), 60 * MINUTE)
    offsets = [
        (at, (EPOCH + timedelta(microseconds=at)).astimezone(here).utcoffset()) for at in hours
    ]
    for (at, before), (_, after) in pairwise(offsets):
        if before != after:
            found.append(at)
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_times_around_changes_of_the_clock_are_what_every_minute_says(zone):
    for at in changes(zone, 2011, 2012):
        begin, end = at - DAY // 2, at + DAY
        for expression in EXPRESSIONS:
            expected = list(reference(expression, zone, begin, end))
            assert ours(expression, zone, begin, end) == expected, (expression, text([at]))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zone", ZONES)
def test_times_of_forty_years_are_what_every_minute_says(zone):
    random = Random(zone)
    stretches = [(at - 2 * DAY, at + 3 * DAY) for at in changes(zone, 2000, 2040)]
    for _ in range(40):
        begin = micros(2000, 1, 1) + random.randrange(40 * 365) * DAY
        stretches.append((begin, begin + 5 * DAY))
    for begin, end in stretches:
        for expression in EXPRESSIONS:
            expected = list(reference(expression, zone, begin, end))
            assert ours(expression, zone, begin, end) == expected, (expression, text([begin]))
        shown.cache_clear()


def field(least: int, most: int) -> st.SearchStrategy[str]:
    """What one of the five fields may be."""
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.one_of(st.just(""), st.integers(1, 31).map(lambda n: f"/{n}"))
    item = st.builds(str.__add__, st.one_of(st.just("*"), number.map(str), span), step)
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


expressions = st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)).map(
    " ".join
)
starts = st.integers(micros(2005, 1, 1), micros(2038, 1, 1))


@settings(deadline=None, max_examples=40)
@given(expressions, st.sampled_from(ZONES), starts)
def test_any_expression_has_the_times_that_every_minute_says(expression, zone, start):
    end = start + DAY
    expected = list(reference(expression, zone, start, end))
    shown.cache_clear()
    assert ours(expression, zone, start, end) == expected


@settings(deadline=None, max_examples=40)
@given(expressions, st.sampled_from(ZONES), starts)
def test_times_rise_match_and_go_on_from_any_of_them(expression, zone, start):
    cron, here = parsed(expression, "e"), ZoneInfo(zone)
    found = list(islice(cron.after(start, here), 6))
    assert all(one < other for one, other in pairwise([start, *found]))
    assert all(cron.matches(each, here) for each in found)
    if len(found) == 6:
        assert list(islice(cron.after(found[2], here), 3)) == found[3:]
    else:
        assert found == []  # on the 31st of April


def test_a_time_that_the_clocks_leave_out_is_skipped_and_one_they_repeat_comes_twice():
    zone = ZoneInfo("America/New_York")
    spring = islice(parsed("30 2 14 3 *", "e").after(micros(2026, 1, 1), zone), 2)
    assert text(list(spring)) == ["2026-03-14T06:30", "2028-03-14T06:30"]  # 2027: the change
    autumn = islice(parsed("30 1 7 11 *", "e").after(micros(2027, 1, 1), zone), 2)
    assert text(list(autumn)) == ["2027-11-07T05:30", "2027-11-07T06:30"]


def test_a_day_that_never_comes_is_told_from_one_that_is_forty_years_away():
    zone = ZoneInfo("UTC")
    assert list(islice(parsed("0 0 31 2 *", "e").after(micros(2026, 1, 1), zone), 1)) == []
    sundays = parsed("0 0 29 2 */7", "e").after(micros(2088, 2, 28), zone)
    assert text(list(islice(sundays, 2))) == ["2088-02-29T00:00", "2128-02-29T00:00"]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "*/ * * * *",
        "1,,2 * * * *",
        "? * * * *",
        "* * L * *",
        "* * 15W * *",
        "* * * * 5#2",
        "* * * foo *",
        "mon * * * *",
        "-1 * * * *",
        "1-2-3 * * * *",
        "٣ * * * *",
        f"{','.join('1' for _ in range(200))} * * * *",
    ],
)
def test_what_is_no_expression_is_refused_with_the_field_named(wrong):
    with pytest.raises(InvalidRequest, match=r"^schedule\.expression: "):
        parsed(wrong, "schedule.expression")


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(given_text):
    try:
        cron = parsed(given_text, "e")
    except InvalidRequest:
        return
    list(islice(cron.after(micros(2026, 1, 1), ZoneInfo("UTC")), 2))


def test_names_sunday_as_seven_and_steps_mean_the_same_as_numbers():
    assert parsed("0 9 * jan,DEC mon-FRI", "e") == parsed("0 9 * 1,12 1-5", "e")
    assert parsed("0 9 * * 5-7", "e").weekdays & 0b1111111 == 0b1100001
    assert parsed("5/20 * * * *", "e").minutes == parsed("5,25,45 * * * *", "e").minutes
