"""Keeping the newest snapshot close to a workspace's files while somebody works in them.

At the end of each turn a snapshot is taken at once, which has the turn's mark; whoever begins the next turn
waits for it. After any other change it waits until it has been quiet for a while, but not for ever; so it does
where turns are not kept, and then nobody waits for it, and it has a mark if no turn has begun meanwhile. A failing
store is tried again with growing pauses; when the work ends, everything is stored at once. `domain.sync` has
the states. A change that comes while a snapshot is being taken may not be in it: then that one has no mark,
and another one follows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import anyio
import msgspec
from msgspec.structs import replace

from roost.core.snapshots.gather import Report
from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.quota import SnapshotQuota
from roost.domain.events import Draft
from roost.domain.snapshot import TurnEnd
from roost.domain.sync import BEHIND, SyncMove, SyncState, step
from roost.errors import (
    BlobsFailed,
    LeaseLost,
    NotFound,
    RoostError,
    TenantStorageFull,
    WorkspaceTooLarge,
)
from roost.ports.drafts import new_draft, trouble
from roost.ports.tree import Tree
from roost.ports.workspaces import Workspace, Workspaces

_log = logging.getLogger(__name__)
_HOPELESS = (WorkspaceTooLarge, NotFound)  # trying again at once would end in the same way
_TIDY_EVERY = 16  # snapshots
_TIDY_BYTES = 256 << 20  # or as soon as so much was stored


class SyncPace(msgspec.Struct, frozen=True, kw_only=True):
    """When to store: after `quiet` seconds without a change, and `longest` after the first at most.

    `soon` is the same as `quiet` where turns are not kept. `pauses` are between tries, `again` is after all of
    them have failed. `flush` is how long an end may be delayed, `turn` how long a turn may be.
    """

    quiet: float = 2.0
    soon: float = 0.2
    longest: float = 10.0
    pauses: Sequence[float] = (1.0, 5.0, 25.0)
    again: float = 30.0
    flush: float = 10.0
    turn: float = 10.0


Say = Callable[[Draft], Awaitable[None]]


async def to_nobody(draft: Draft) -> None:
    """Take a report that nobody wants to hear."""


class SyncParts(NamedTuple):
    """What storing workspaces needs, the same for all of a node."""

    snapshots: Snapshots
    rows: Workspaces
    quota: SnapshotQuota
    pace: SyncPace


class Sync:
    """One living copy of one workspace. `tell` is called whenever the state changes. `say` writes to the
    logs of those who work in it: once when storing was given up, and once when everything is stored again.

    `used`: somebody has worked in it. Until then there is nothing to store when it ends: it may have been
    made for a session that never comes to be. `behind`: the session has seen turns that these files have
    not; until one ends here, they are not all there is, and the row does not become `idle`. `keeps_turns`: what
    each turn leaves is stored before the next one begins.
    """

    def __init__(
        self,
        row: Workspace,
        tree: Tree,
        parts: SyncParts,
        lock: anyio.Lock,
        tell: Callable[[SyncState], None],
        say: Say,
        *,
        used: bool,
        keeps_turns: bool,
    ) -> None:
        self.state = SyncState.IDLE
        self.used = used
        self.behind = False
        self._row = row
        self._tree = tree
        self._snapshots = parts.snapshots
        self._rows = parts.rows
        self._quota = parts.quota
        self._pace = parts.pace
        self._keeps_turns = keeps_turns
        self._quiet = parts.pace.quiet if keeps_turns else parts.pace.soon
        self._lock = lock
        self._tell = tell
        self._say = say
        self._said = self._hopeless = False
        self._mark = 0
        self._ends = TurnEnds()
        self._changed_at = 0.0
        self._changed = anyio.Event()
        self._turned = anyio.Event()
        self._settled = anyio.Event()
        self._untidied = 0
        self._troubled = False  # nobody need wait for what will fail, perhaps

    def changed(self, mark: int) -> None:
        """The files may have changed; `mark` is the end of the turn that is over, 0 if none is."""
        self.used = True
        self._mark = mark
        self._changed_at = anyio.current_time()
        self._changed.set()
        if mark:
            if self._keeps_turns:
                self._turned.set()
            if not self._troubled:
                self._settled = anyio.Event()
        if self.state is not SyncState.FLUSHING:
            self._move(SyncMove.CHANGE)

    def ended(self, session: str, seq: int) -> None:
        """A turn of one of several sessions is over, at this place in its log."""
        self._ends.add(session, seq)
        if self._troubled:
            self._ends.excuse()
        self.changed(0)
        self._turned.set()

    async def settled(self) -> None:
        """Returns when the snapshots of turns that are over are taken, or cannot be now."""
        waited_for = [self._settled] if self._mark else []
        for event in (*waited_for, *(due.settled for due in self._ends.due)):
            if not event.is_set():  # mostly it is, and then the turn begins at once
                await event.wait()

    async def begun(self) -> None:
        """A turn begins. Returns when what was before is stored, or when that takes too long; at once, if turns
        are not kept.
        """
        due = self._ends.due
        if self._keeps_turns:
            with anyio.move_on_after(self._pace.turn) as waited:
                await self.settled()
            if waited.cancelled_caught:
                _log.warning("a turn begins before the last is stored", extra=self._about("turn"))
        self._mark = 0
        self._settled.set()  # nothing will be stored as the end of that turn, if it is not by now
        self._ends.forget(due)

    async def run(self) -> None:
        """Store changes as they come, until cancelled, or until a newer generation has the workspace."""
        try:
            while True:
                await self._changed.wait()
                await self._until_quiet()
                while not await self._store(SyncMove.START):
                    await self._until_again()
        except LeaseLost as lost:
            _log.info("sync ends: %s", lost.message, extra=self._about("lost"))
        except RoostError as error:  # the database; what was to be noted is noted at the end
            _log.warning("sync ends: %s", error.message, extra=self._about("fail"))
        self._excuse()  # if it was cancelled, what it was storing is stored by `flush`

    async def flush(self) -> None:
        """Store everything now; what cannot be stored in time is recovered later. After `run` ended."""
        if not self.used:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._pace.flush):
            try:
                if await self._store(SyncMove.FLUSH):
                    await self._note_end()
            except LeaseLost as lost:
                _log.info("not stored: %s", lost.message, extra=self._about("lost"))
            except RoostError as error:
                _log.warning("not stored: %s", error.message, extra=self._about("flush"))
        self._excuse()

    async def _note_end(self) -> None:
        """Everything is stored; or what there is, and no machine has what is lacking."""
        if not self.behind:
            await self._note(SyncState.IDLE)
            return
        rest = replace(self._row, state=SyncState.PENDING, attempts=0, error=BEHIND)
        self._row = await self._rows.note(rest)

    async def _until_again(self) -> None:
        """It was given up. It is tried again at the next change, and after a while, if that is any use."""
        with anyio.move_on_after(math.inf if self._hopeless else self._pace.again):
            await self._changed.wait()
        if self.state is SyncState.ERROR:
            self._move(SyncMove.CHANGE)

    async def _until_quiet(self) -> None:
        latest = self._changed_at + self._pace.longest
        while True:
            wait = min(self._changed_at + self._quiet, latest) - anyio.current_time()
            if wait <= 0 or self._turned.is_set():
                return
            with anyio.move_on_after(wait):
                await self._turned.wait()

    async def _store(self, move: SyncMove) -> bool:
        """Whether the newest snapshot has everything; False if that was given up."""
        for attempt in range(1, len(self._pace.pauses) + 2):
            self._move(move)
            try:
                await self._store_once()
                await self._say_recovered()
                return True
            except LeaseLost:
                raise
            except (RoostError, OSError) as error:
                self._excuse()
                self._hopeless = isinstance(error, _HOPELESS)
                full = isinstance(error, TenantStorageFull)  # not over in seconds, but some time
                last = attempt > len(self._pace.pauses) or self._hopeless or full
                self._move(SyncMove.GIVE_UP if last else SyncMove.FAIL)
                await self._note(self.state, attempt, str(error))
                if last:
                    await self._say_failed(error)
                    return False
            await anyio.sleep(self._pace.pauses[attempt - 1])
            move = SyncMove.START
        return False

    async def _store_once(self) -> None:
        self._changed, self._turned = anyio.Event(), anyio.Event()
        mark, ends = self._mark, self._ends.due
        async with self._lock:
            await self._refuse_if_stale()
            refusal = await self._quota.refusal(self._row.id)
            taken = await self._snapshots.take(
                self._row.id,
                self._tree,
                self._row.generation,
                lambda: mark if mark == self._mark else 0,
                lambda: self._ends.still(ends),
                expected=self._row.sequence > 0,
                refusal=refusal,
            )
            self._troubled = False
            self._ends.forget(ends)
            if mark == self._mark:
                self._settled.set()
            self._untidied += taken.stored
            due = taken.stored and not taken.snapshot.sequence % _TIDY_EVERY
            if due or self._untidied > _TIDY_BYTES:
                self._untidied = 0
                await self._snapshots.tidy(self._row.id)
        self._move(SyncMove.DONE)
        if self._changed.is_set():
            self._move(SyncMove.CHANGE)
        self._report(taken.report)
        if taken.snapshot.sequence != self._row.sequence:
            self._row = replace(self._row, sequence=taken.snapshot.sequence)
            weight = await self._snapshots.weight(self._row.id)
            await self._note(SyncState.PENDING, weight=weight)

    def _excuse(self) -> None:
        """Nobody need wait any more for what is to be stored."""
        self._troubled = True
        self._settled.set()
        self._ends.excuse()

    async def _refuse_if_stale(self) -> None:
        row = await self._rows.find(self._row.id)
        if row is None or (row.copy, row.generation) != (self._row.copy, self._row.generation):
            raise LeaseLost(f"{self._row.id} is held by somebody else")

    async def _say_failed(self, error: RoostError | OSError) -> None:
        if self._said:
            return
        self._said = True
        known = error if isinstance(error, RoostError) else BlobsFailed(str(error))
        text = (
            f"the files cannot be stored: {known.message}. Until that is fixed they are only on this "
            f"machine; it is tried again automatically. {known.hint or ''}"
        )
        await self._say_so(trouble(known.code, text.strip(), "retrying"))

    async def _say_recovered(self) -> None:
        if self._said:
            self._said = False
            await self._say_so(new_draft("roost.files_stored"))

    async def _say_so(self, draft: Draft) -> None:
        try:
            await self._say(draft)
        except RoostError as error:  # whoever worked in it has gone
            _log.info("not told: %s", error.message, extra=self._about("tell"))

    async def _note(
        self, state: SyncState, attempts: int = 0, error: str = "", weight: int | None = None
    ) -> None:
        row = replace(self._row, state=state, attempts=attempts, error=error[:1000])
        self._row = await self._rows.note(row, weight)
        if error:
            _log.warning("cannot store the files: %s", error, extra=self._about(state))

    def _report(self, report: Report) -> None:
        if report.counts:
            left = ", ".join(f"{count} {why}" for why, count in report.counts.items())
            _log.warning("left out of the snapshot: %s", left, extra=self._about("skip"))

    def _move(self, move: SyncMove) -> None:
        self.state = step(self.state, move)
        self._tell(self.state)

    def _about(self, action: str) -> dict[str, str]:
        return {"action": action, "session": self._row.id}


class _Due:
    def __init__(self, session: str, seq: int) -> None:
        self.end: TurnEnd = (session, seq)
        self.settled = anyio.Event()


class TurnEnds:
    """Turns in a shared workspace that are over, and are not stored yet: of each session the last at most.

    Each is waited for by whoever begins the next turn there, of whichever session: it is stored before
    anything changes, or not as the end of that turn at all.
    """

    def __init__(self) -> None:
        self._due: dict[str, _Due] = {}

    @property
    def due(self) -> list[_Due]:
        """The turns that are yet to be stored."""
        return list(self._due.values())

    def add(self, session: str, seq: int) -> None:
        """A turn of this session is over."""
        self.forget([self._due[session]] if session in self._due else [])
        self._due[session] = _Due(session, seq)

    def still(self, taken: Sequence[_Due]) -> list[TurnEnd]:
        """Those of them after which nothing has begun yet."""
        return [due.end for due in taken if self._due.get(due.end[0]) is due]

    def forget(self, those: Sequence[_Due]) -> None:
        """They are stored, or something has begun; nobody waits for them any more."""
        for due in those:
            due.settled.set()
            if self._due.get(due.end[0]) is due:
                del self._due[due.end[0]]

    def excuse(self) -> None:
        """Nobody need wait: storing fails."""
        for due in self._due.values():
            due.settled.set()
