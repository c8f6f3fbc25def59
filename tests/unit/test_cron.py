"""Cron expressions, held to a reference that asks of every single minute what the clocks show."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib.resources import files
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.records import timezones
from roost.core.records.timezones import timezone_of
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


zone_of = partial(timezone_of, at="timezone")


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


Shown = tuple[int, int, int, int, int]
"""Month, day, day of the week, hour and minute, as the clocks of a zone show them."""


def asked_for(expression: str) -> Callable[[Shown], bool]:
    """Whether an expression asks for what clocks show."""
    minute, hour, day, month, week = expression.split()
    minutes, hours, days = numbers(minute, 0, 59), numbers(hour, 0, 23), numbers(day, 1, 31)
    months = numbers(month, 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec")
    weeks = {each % 7 for each in numbers(week, 0, 6, "sun mon tue wed thu fri sat")}
    both = "*" in (day[0], week[0])

    def asks(clock: Shown) -> bool:
        month_, day_, week_, hour_, minute_ = clock
        if minute_ not in minutes or hour_ not in hours or month_ not in months:
            return False
        in_month, in_week = day_ in days, week_ in weeks
        return in_month and in_week if both else in_month or in_week

    return asks


def reference(expression: str, zone: str, begin: int, end: int) -> Iterator[int]:
    """Every minute of UTC in a stretch at which the clocks of a zone show what the expression asks for."""
    asks = asked_for(expression)
    return (at for at, clock in shown(zone, begin, end) if asks(clock))


@cache
def shown(zone: str, begin: int, end: int) -> list[tuple[int, Shown]]:
    return list(every_minute(zone, begin, end))


def every_minute(zone: str, begin: int, end: int) -> Iterator[tuple[int, Shown]]:
    """After the beginning, and up to the end."""
    here = zone_of(zone)
    moment = EPOCH + timedelta(microseconds=begin - begin % MINUTE)
    for at in range(begin - begin % MINUTE + MINUTE, end + 1, MINUTE):
        moment += timedelta(minutes=1)
        local = moment.astimezone(here)
        yield (
            at,
            (local.month, local.day, local.isoweekday() % 7, local.hour, local.minute),
        )


def ours(expression: str, zone: str, begin: int, end: int) -> list[int]:
    times = parsed(expression, "e").after(begin, zone_of(zone))
    return list(takewhile(lambda at: at <= end, times))


def changes(zone: str, first: int, last: int) -> list[int]:
    """When the clocks of a zone are changed, to the hour before."""
    found = []
    hours = range(micros(first, 1, 1), micros(last, 1, 1), 60 * MINUTE)
    for at, later in pairwise(hours):
        if offset(zone, at) != offset(zone, later):
            found.append(at)
    return found


def offset(zone: str, at: int) -> timedelta:
    found = (EPOCH + timedelta(microseconds=at)).astimezone(zone_of(zone)).utcoffset()
    assert found is not None
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
    asking = [asked_for(expression) for expression in EXPRESSIONS]
    begin, end, both_ways = micros(2000, 1, 1) - 1, micros(2040, 1, 1) - 1, set()
    found = [parsed(each, "e").after(begin, zone_of(zone)) for each in EXPRESSIONS]
    coming = [next(times) for times in found]
    minutes = 0
    for at, clock in every_minute(zone, begin, end):
        minutes += 1
        for which, asks in enumerate(asking):
            if (coming[which] == at) != asks(clock):
                pytest.fail(f"{EXPRESSIONS[which]}: {text([at, coming[which]])}")
            if coming[which] == at:
                coming[which] = next(found[which], end + 1)
    for at in changes(zone, 2000, 2040):
        both_ways.add(offset(zone, at) < offset(zone, at + 60 * MINUTE))
    assert minutes == (end - begin) // MINUTE
    assert len(both_ways) == 2 or zone in ("Asia/Kathmandu", "UTC")


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
    cron, here = parsed(expression, "e"), zone_of(zone)
    found = list(islice(cron.after(start, here), 6))
    assert all(one < other for one, other in pairwise([start, *found]))
    assert all(cron.matches(each, here) for each in found)
    if len(found) == 6:
        assert list(islice(cron.after(found[2], here), 3)) == found[3:]
    else:
        assert found == []  # on the 31st of April


def test_a_time_that_the_clocks_leave_out_is_skipped_and_one_they_repeat_comes_twice():
    zone = zone_of("America/New_York")
    spring = islice(parsed("30 2 14 3 *", "e").after(micros(2026, 1, 1), zone), 2)
    assert text(list(spring)) == ["2026-03-14T06:30", "2028-03-14T06:30"]  # 2027: the change
    autumn = islice(parsed("30 1 7 11 *", "e").after(micros(2027, 1, 1), zone), 2)
    assert text(list(autumn)) == ["2027-11-07T05:30", "2027-11-07T06:30"]


def test_a_day_that_never_comes_is_told_from_one_that_is_forty_years_away():
    zone = zone_of("UTC")
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
    read_or_refused(given_text)


def read_or_refused(given_text: str) -> bool:
    try:
        cron = parsed(given_text, "e")
    except InvalidRequest:
        return False
    list(islice(cron.after(micros(2026, 1, 1), zone_of("UTC")), 2))
    return True


NUMBERS = (
    "[0-5]?[0-9]",
    "1?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]",
    "0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec",
    "[0-7]|0[0-7]|sun|mon|tue|wed|thu|fri|sat",
)
GRAMMAR = re.compile(
    " ".join(
        rf"(?:{item})(?:,(?:{item}))*"
        for item in (
            rf"(?:\*|(?:0?(?:{n}))(?:-0?(?:{n}))?)(?:/0*[1-9][0-9]{{0,2}})?" for n in NUMBERS
        )
    )
)
"""What an expression may look like. That a range does not end before it begins is not in it."""


@st.composite
def near_misses(draw: st.DrawFn) -> str:
    """An expression with a character more, less, or another one."""
    right = draw(expressions)
    at = draw(st.integers(0, len(right)))
    new = draw(
        st.sampled_from([*"0123456789*/,- ?#LW@.+", "jan", "SUN", "fri", "\n", "\u0663", ""])
    )
    return right[:at] + new + right[at + draw(st.integers(0, 2)) :]


@settings(deadline=None, max_examples=60)
@given(near_misses())
def test_nearly_an_expression_is_read_only_if_it_is_one(almost):
    check_grammar(almost)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@settings(deadline=None, max_examples=20_000)
@given(near_misses())
def test_of_many_that_are_nearly_expressions_only_expressions_are_read(almost):
    check_grammar(almost)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@settings(deadline=None, max_examples=2_000)
@given(expressions, st.sampled_from(ZONES), starts)
def test_many_expressions_have_the_times_that_every_minute_says(expression, zone, start):
    asks, end = asked_for(expression), start + 2 * DAY
    expected = [at for at, clock in every_minute(zone, start, end) if asks(clock)]
    assert ours(expression, zone, start, end) == expected


def check_grammar(almost: str) -> None:
    words = " ".join(almost.split()).lower()
    looks_right = almost.isascii() and GRAMMAR.fullmatch(words) is not None
    assert not read_or_refused(almost) or looks_right
    if looks_right and not re.search("[a-z0-9]-", words):
        assert read_or_refused(almost)


def test_zones_go_by_the_rules_of_the_package_whatever_the_machine_has(monkeypatch, tmp_path):
    """As on a node whose system has other rules of a zone, and a zone of its own."""
    winter, summer = micros(2026, 1, 1), micros(2026, 7, 1)
    for name in ("Europe/Berlin", "Mars/Olympus"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(files("tzdata").joinpath("zoneinfo", "UTC").read_bytes())
    monkeypatch.setattr(timezones, "_zone", timezones._zone.__wrapped__)
    zoneinfo.reset_tzpath(to=[tmp_path])
    try:
        ZoneInfo.clear_cache()
        machine = ZoneInfo("Europe/Berlin")
        assert (EPOCH + timedelta(microseconds=summer)).astimezone(machine).hour == 0
        offsets = [offset("Europe/Berlin", at) for at in (winter, summer)]
        with pytest.raises(InvalidRequest, match="Mars/Olympus"):
            zone_of("Mars/Olympus")
    finally:
        zoneinfo.reset_tzpath()
        ZoneInfo.clear_cache()
    assert offsets == [timedelta(hours=1), timedelta(hours=2)]


def test_every_zone_of_the_package_is_served():
    names = files("tzdata").joinpath("zones").read_text().split()
    assert len(names) > 500
    assert [zone_of(name).key for name in names] == names


def test_names_sunday_as_seven_and_steps_mean_the_same_as_numbers():
    assert parsed("0 9 * jan,DEC mon-FRI", "e") == parsed("0 9 * 1,12 1-5", "e")
    assert parsed("0 9 * * 5-7", "e").weekdays & 0b1111111 == 0b1100001
    assert parsed("5/20 * * * *", "e").minutes == parsed("5,25,45 * * * *", "e").minutes
