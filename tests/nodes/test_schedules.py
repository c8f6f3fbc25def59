"""Three real servers start what has a schedule, whatever happens to them at its times: each has one run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from tests.faults.cluster import seeded
from tests.nodes.scheduled_cluster import FEW, MANY, NAMES, ScheduledCluster, scheduled_cluster

KILLS = int(os.environ.get("ROOST_CHAOS_KILLS", "100"))
pytestmark = [pytest.mark.xdist_group("nodes"), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduledCluster]:
    with scheduled_cluster(tmp_path_factory.mktemp("schedules"), FEW) as cluster:
        yield cluster


def test_killed_at_any_step_of_a_run_each_time_has_one_run_and_that_one_session(
    cluster: ScheduledCluster,
) -> None:
    steps = [("claim", 1), ("claim", -1), ("take", -1), ("create", 1), ("create", -1)]
    steps += [("settle", 1), ("settle", -1)]
    for step, wait in steps:
        if cluster.dead() == 2:
            cluster.revive()
        assert cluster.strike(step, wait), f"nobody came to {step}"
    cluster.check()


def test_times_at_which_nobody_was_there_are_made_up_for_as_each_deployment_says(
    cluster: ScheduledCluster,
) -> None:
    cluster.down(3)
    cluster.hour()
    cluster.check()


def test_a_clock_that_is_an_hour_ahead_or_back_runs_nothing_twice_and_misses_nothing(
    cluster: ScheduledCluster,
) -> None:
    cluster.revive()
    cluster.ahead("c")
    cluster.behind("b")
    cluster.check()


def test_a_standby_that_is_promoted_when_times_have_come_has_one_run_for_each(
    cluster: ScheduledCluster,
) -> None:
    cluster.revive()
    cluster.fail_over(after=0.1)
    cluster.hour()
    cluster.check()


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_over_many_hours_and_kills_each_time_has_one_run_by_its_policy(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chance, began = seeded(), time.monotonic()
    with scheduled_cluster(tmp_path_factory.mktemp("chaos"), MANY) as cluster:
        failed_over = False
        while (kills := killed(cluster)) < KILLS:
            if cluster.dead():
                cluster.revive()
            what = chance.random()
            if not failed_over and kills >= KILLS // 2:
                cluster.fail_over(after=chance.uniform(0, 0.3))
                failed_over = True
            elif what < 0.05:
                cluster.down(chance.randint(1, 4))
            elif what < 0.08:
                cluster.ahead(chance.choice(NAMES))
            elif what < 0.11:
                cluster.behind(chance.choice(NAMES))
            elif what < 0.2:
                cluster.to_next_hour()
                time.sleep(chance.uniform(0, 0.4))
                cluster.kill(chance.choice(NAMES))
                cluster.until_settled()
            else:
                step = chance.choice(["claim", "take", "create", "settle", "advance"])
                cluster.strike(step, chance.choice([-1, *range(12 if step == "advance" else 4)]))
        runs = cluster.check()
        assert failed_over
    print(
        f"{dict(cluster.did)}: {cluster.hours} hours, {runs} sessions, {time.monotonic() - began:.0f} s"
    )


def killed(cluster: ScheduledCluster) -> int:
    return sum(count for what, count in cluster.did.items() if what.startswith("killed"))
