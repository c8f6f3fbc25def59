"""What is decided about the times of a schedule: which run, which are skipped, and when the next one is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from roost.domain.cron import parsed
from roost.domain.schedule import Decision, Schedule, decide, jittered

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000


def at(hour: int, minute: int = 0, second: int = 0, day: int = 1) -> int:
    moment = datetime(2026, 6, day, hour, minute, second, tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def decided(
    now: int, *, due: int | None = None, busy: bool = False, queued: bool = False, **policy: Any
) -> Decision:
    schedule = Schedule(cron=parsed("0 * * * *", "e"), zone=UTC, **policy)
    return decide(schedule, at(9) if due is None else due, now, busy=busy, queued=queued)


def told(decision: Decision) -> list[Any]:
    """The hour of each, its state, and why it is skipped."""
    return [
        ((each.at - at(0)) // MINUTE // 60, each.state, each.reason, each.count)
        for each in decision.occurrences
    ]


def test_a_time_that_has_just_come_is_run_and_the_next_one_follows():
    decision = decided(at(9, 0, 3))
    assert told(decision) == [(9, "open", None, 1)]
    assert decision.next == at(10)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", [(12, "skipped", "missed", 4)]),
        ("latest", [(11, "skipped", "missed", 3), (12, "open", None, 1)]),
        (
            "all",
            [
                (9, "open", None, 1),
                (10, "open", None, 1),
                (11, "open", None, 1),
                (12, "open", None, 1),
            ],
        ),
    ],
)
def test_missed_times_are_treated_as_the_policy_says(missed, expected):
    decision = decided(at(12, 30), missed=missed)
    assert told(decision) == expected
    assert decision.next == at(13)
    if missed != "all":
        assert decision.occurrences[0].since == at(9)


@pytest.mark.parametrize("missed", ["skip", "latest"])
def test_after_missed_times_one_that_is_on_time_is_run(missed):
    decision = decided(at(12, 0, 30), missed=missed)
    assert told(decision) == [(11, "skipped", "missed", 3), (12, "open", None, 1)]


def test_what_is_older_than_the_window_is_not_made_up_for():
    decision = decided(at(12, 30), missed="all", window=2 * 3600)
    assert told(decision) == [
        (9, "skipped", "missed", 1),
        (11, "open", None, 1),
        (12, "open", None, 1),
    ]
    decision = decided(at(12, 30), missed="latest", window=600)
    assert told(decision) == [(9, "skipped", "missed", 1)]


def test_a_year_without_a_server_is_one_skipped_run_and_at_most_a_hundred_others():
    due = at(9) - 365 * 24 * 60 * MINUTE
    decision = decided(at(9, 30), due=due, missed="all", window=7 * 86_400)
    assert [each.state for each in decision.occurrences] == ["skipped"] + ["open"] * 100
    assert decision.occurrences[0].since == due
    assert decision.occurrences[0].count == 7 * 24 - 100 + 1


def test_a_time_that_is_none_by_the_zone_s_new_rules_is_not_run():
    decision = decided(at(9, 17, 5), due=at(9, 17))
    assert (told(decision), decision.next) == ([], at(10))


@pytest.mark.parametrize(
    ("overlap", "queued", "expected"),
    [
        ("allow", False, (9, "open", None, 1)),
        ("skip", False, (9, "skipped", "overlap", 1)),
        ("queue", False, (9, "queued", None, 1)),
        ("queue", True, (9, "skipped", "queue_full", 1)),
        ("replace", False, (9, "queued", None, 1)),
        ("replace", True, (9, "queued", None, 1)),
    ],
)
def test_while_the_last_run_works_the_policy_decides(overlap, queued, expected):
    decision = decided(at(9, 0, 1), overlap=overlap, busy=True, queued=queued)
    assert told(decision) == [expected]
    assert decision.drops_queue == (overlap == "replace" and queued)
    assert told(decided(at(9, 0, 1), overlap=overlap)) == [(9, "open", None, 1)]


def test_missed_times_that_are_made_up_for_overlap_with_each_other():
    all_of = {"missed": "all"}
    states = [each[1:3] for each in told(decided(at(12, 30), overlap="skip", **all_of))]
    assert states == [("open", None)] + [("skipped", "overlap")] * 3
    states = [each[1:3] for each in told(decided(at(12, 30), overlap="queue", **all_of))]
    assert states == [("open", None), ("queued", None)] + [("skipped", "queue_full")] * 2
    states = [each[1:3] for each in told(decided(at(12, 30), overlap="replace", **all_of))]
    assert states == [("open", None)] + [("skipped", "replaced")] * 2 + [("queued", None)]


def test_jitter_is_the_same_at_each_look_and_within_its_bound():
    starts = [jittered("depl_1", at(9, minute), 10) - at(9, minute) for minute in range(60)]
    assert starts == [jittered("depl_1", at(9, minute), 10) - at(9, minute) for minute in range(60)]
    assert all(0 <= each < 10_000_000 for each in starts)
    assert len(set(starts)) > 50
    assert jittered("depl_1", at(9), 0) == at(9)
