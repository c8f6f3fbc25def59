"""Runs: what a deployment or a task was to start at a time or by hand, and what came of it.

A record that has a schedule is due at its next time (`Record.due_at`). Claiming a time and recording its run are one
commit, and no two runs of an owner have one slot: so each time has one run, whoever looks and however often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from roost.domain.events import Micros
from roost.ports.catalog import Kind, Record

RunState = Literal["open", "queued", "started", "failed", "skipped"]

MOST_RUNS: Final = 10_000
"""Of one owner: the oldest go when there are more, but for those that are not over."""

MOST_TASK_RUNS: Final = 1_000
"""Of a task, whose runs have outcomes."""

NOT_YET: Final = 2**62
"""`look_at` of a run that waits for another one's end."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `owner` is the id of its record, of this `kind`; `slot` is what it is for.

    `open` until its session is made, `queued` if it waits for another run's end before that. `look_at` is when somebody
    has to do something about it; 0: never again. `scheduled_at` is None if somebody started it by hand.
    """

    id: str
    tenant: str
    kind: Kind
    owner: str
    created_by: str
    slot: str
    state: RunState
    look_at: Micros
    body: dict[str, Any]
    scheduled_at: Micros | None = None
    session_id: str | None = None
    created_at: Micros = 0
    started_at: Micros | None = None
    ended_at: Micros | None = None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a listing shows, newest first; `after` is the id of the last one seen."""

    kind: Kind
    tenant: str
    owner: str | None = None
    created_by: str | None = None
    states: Sequence[str] = ()
    scheduled: bool | None = None
    since: Micros | None = None
    until: Micros | None = None
    after: str | None = None
    limit: int = 20


class Planned(msgspec.Struct, frozen=True):
    """What a time that has come leads to: new runs, when the record is due next, and waiting runs, changed."""

    due_at: Micros | None
    runs: Sequence[Run] = ()
    changed: Sequence[Run] = ()


Plan = Callable[[Record, Sequence[Run]], Planned]
"""From a due record and its unfinished runs. Pure: may run twice."""

Amend = Callable[[Record, Sequence[Run]], tuple[dict[str, Any], Sequence[Run]]]
"""From a record and its unfinished runs: its new body, and new runs. Pure: may run twice."""


class Runs(Protocol):
    """The runs of all tenants."""

    async def claim(
        self, kind: Kind, tenant: str, owner: str, now: Micros, plan: Plan
    ) -> list[Run]:
        """If the record is due by `now`, do what the plan says in one commit. Gives the runs that are new.

        Nothing happens if it is not due any more, because somebody else was faster, or is gone or archived. A run
        whose slot is taken already is not made again. Of more than `MOST_RUNS` the oldest go.
        """
        ...

    async def begin(self, run: Run) -> Run:
        """A run that somebody asks for. If its slot is taken, the one that has it."""
        ...

    async def amend(self, kind: Kind, tenant: str, owner: str, amend: Amend) -> list[Run]:
        """Change a record and add runs to it, in one commit. Gives those that are new.

        A run whose id or slot is taken is not made again; if that is so with all of them, nothing changes.

        :raises NotFound: the record; and whatever `amend` raises
        """
        ...

    async def take(self, now: Micros, until: Micros, *, limit: int) -> list[Run]:
        """Runs that somebody has to look at by `now`, those that wait longest first. Nobody else gets them
        before `until`.
        """
        ...

    async def least_look(self) -> Micros | None:
        """When a run has to be looked at next; None: there is none. `NOT_YET`: none before another one ends."""
        ...

    async def settle(
        self,
        run: Run,
        before: RunState,
        *,
        change: Callable[[Record], dict[str, Any]] | None = None,
        pauses: bool = False,
        archive: bool = False,
    ) -> Run | None:
        """Write what came of a run, if its state is still `before` and it has not ended; None: it is not, and nothing
        is written. In the same commit `change` is applied to its record: with `pauses` the record is then due no
        more; with `archive` it is archived, and `change` gives its last body. If the run has ended and no other one of its owner works, the one that waits is opened.
        """
        ...

    async def get(self, kind: Kind, tenant: str, run_id: str) -> Run:
        """The run of that id, if it is the tenant's. :raises NotFound:"""
        ...

    async def page(self, query: RunQuery) -> list[Run]:
        """A page of runs. :raises InvalidRequest: there never was an `after`"""
        ...

    async def last_started(self, owners: Sequence[str]) -> dict[str, Micros]:
        """When the newest scheduled run of each owner has started; those without one are left out."""
        ...
