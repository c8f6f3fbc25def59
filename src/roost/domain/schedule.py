"""What is to be done about a schedule's times: which of them run, which are skipped and why, and when the next is.

A time is *missed* if nobody looked at it within a minute: no server ran, or its clock was wrong. What then happens is
the schedule's to say, as is what happens while its last run still works. Each time ends up in exactly one run; the
times that are passed over together are one run, which says how many they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, Final, Literal

import msgspec

from roost.domain.cron import Cron, parsed
from roost.domain.events import Micros

Missed = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "replace"]
Reason = Literal["missed", "overlap", "queue_full", "replaced"]

SECOND: Final = 1_000_000
_ON_TIME: Final = 60 * SECOND
MOST_CAUGHT_UP: Final = 100
"""How many missed times are run at once, however long nobody was there."""

DAY_SECONDS: Final = 86_400
LONGEST_WINDOW: Final = 7 * DAY_SECONDS


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When something runs, and its policies. `window` is how far back missed times matter, in seconds."""

    cron: Cron
    zone: tzinfo
    missed: Missed = "skip"
    window: int = DAY_SECONDS
    overlap: Overlap = "allow"

    def next(self, after: Micros) -> Micros | None:
        """The first time after a moment; None: there is none."""
        return next(self.cron.after(after, self.zone), None)

    def upcoming(self, after: Micros, count: int) -> list[Micros]:
        """The times that come after a moment."""
        return list(islice(self.cron.after(after, self.zone), count))


def missed_runs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a record says of missed times; what is not given is as usual."""
    return {"policy": "skip", "window_seconds": DAY_SECONDS, **(given or {})}


def schedule_of(body: Mapping[str, Any], zone: tzinfo) -> Schedule:
    """The schedule of a record that has one. :raises InvalidRequest: naming the field"""
    missed = body["missed_runs"]
    return Schedule(
        cron=parsed(body["schedule"]["expression"], "schedule.expression"),
        zone=zone,
        missed=missed["policy"],
        window=missed["window_seconds"],
        overlap=body["overlap"],
    )


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A time that has come, and what happens at it. Those from `since` on that were passed over count with it."""

    at: Micros
    state: Literal["open", "queued", "skipped"]
    reason: Reason | None = None
    since: Micros | None = None
    count: int = 1


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What happens now, and when to look again. `drops_queue`: a run that waited for the last one's end is not
    needed any more.
    """

    occurrences: Sequence[Occurrence]
    next: Micros | None
    drops_queue: bool = False


def decide(
    schedule: Schedule, due_at: Micros, now: Micros, *, busy: bool, queued: bool
) -> Decision:
    """What happens about a time that has come and all later ones up to now.

    `busy`: a run of it still works. `queued`: another one waits for that one's end.
    """
    runs, passed = _sorted_out(schedule, due_at, now)
    occurrences = []
    if passed:
        occurrences.append(
            Occurrence(
                at=passed[-1], state="skipped", reason="missed", since=passed[0], count=len(passed)
            )
        )
    drops_queue = False
    for at in runs:
        made, drops = _overlapped(schedule.overlap, at, busy=busy, queued=queued)
        if drops and occurrences and occurrences[-1].state == "queued":
            occurrences[-1] = msgspec.structs.replace(
                occurrences[-1], state="skipped", reason="replaced"
            )
        elif drops:
            drops_queue = True
        busy, queued = busy or made.state == "open", queued or made.state == "queued"
        occurrences.append(made)
    return Decision(occurrences=occurrences, next=schedule.next(now), drops_queue=drops_queue)


def _sorted_out(
    schedule: Schedule, due_at: Micros, now: Micros
) -> tuple[list[Micros], list[Micros]]:
    """The times that are run, and those that are passed over, each in order."""
    since = max(due_at, now - schedule.window * SECOND)
    times = list(_times(schedule, since, now))
    if schedule.missed == "skip":
        kept = [at for at in times if at > now - _ON_TIME]
    else:
        kept = times[-1:] if schedule.missed == "latest" else times[-MOST_CAUGHT_UP:]
    passed = times[: len(times) - len(kept)]
    if since > due_at and schedule.cron.matches(due_at, schedule.zone):
        passed.insert(0, due_at)  # the first of those that are too old to be counted
    return kept, passed


def _times(schedule: Schedule, first: Micros, last: Micros) -> Iterator[Micros]:
    # A time that was planned by other rules of its zone may not be one any more: then it is none of these.
    return takewhile(lambda at: at <= last, schedule.cron.after(first - 1, schedule.zone))


def _overlapped(
    overlap: Overlap, at: Micros, *, busy: bool, queued: bool
) -> tuple[Occurrence, bool]:
    """What happens at a time, and whether the run that waits is dropped for it."""
    if overlap == "allow" or not busy:
        return Occurrence(at=at, state="open"), False
    if overlap == "skip":
        return Occurrence(at=at, state="skipped", reason="overlap"), False
    if overlap == "queue" and queued:
        return Occurrence(at=at, state="skipped", reason="queue_full"), False
    return Occurrence(at=at, state="queued"), queued


def jittered(owner: str, at: Micros, most: float) -> Micros:
    """When a run starts: a little after its time, the same for each look, so that not all start at once."""
    spread = int(most * SECOND)
    if spread <= 0:
        return at
    return at + int.from_bytes(sha256(f"{owner} {at}".encode()).digest()[:8]) % spread
