"""Work items: how a session on a self-hosted environment comes by a worker, and what happens if that is lost.

What is written, and what follows if nothing more is:

1. A turn begins (the session's log), and then the item is queued, or marked as wanted. Killed between the two, the
   turn is taken again, and that is done again.
2. A poll claims the item. Not acknowledged, it is handed out again after seconds.
3. `ack`: first is noted when the lease ends (`core/work/work_watch`), and then that the item is taken. Heartbeats
   follow. Without them, the lease ends.
4. When a lease has ended: first the item is taken away from its worker, which cannot change it any more; then each
   call that the worker may have begun gets a result that says that its outcome is unknown (the session's log); then
   the item is queued again. Killed in between, what is left is done by the next who looks; a call has one result.
5. A worker stops the item. If the session still needs one, the same change queues the next, at once or for later.
   Whoever begins a turn changes the record as well, so a stop that does not know of it yet is tried again, and what
   was put off is offered at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from roost.core.work.work_watch import WorkWatch
from roost.core.work.worker_presence import WorkerPresence
from roost.core.write.intake import Intake
from roost.domain.events import Draft, Micros, iso
from roost.domain.session import Session, Status
from roost.domain.work_item import (
    CLOSED,
    RECLAIMED_AFTER,
    REPEATABLE,
    Standing,
    WorkItem,
    after_return,
    needs_worker,
    parts_of,
    record_id,
    waits_for_worker,
)
from roost.errors import (
    Conflict,
    HeartbeatMismatch,
    InvalidRequest,
    NotFound,
    RoostError,
    SessionClosed,
)
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.log import Log, Receipt
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_KIND: Final = "work"
_LOOKED_AT: Final = 100  # due items, at once
_COUNTED: Final = 1000  # items that wait; each session that waits counts them
_SWEEPS_EVERY: Final = 2.0  # seconds
_DAY: Final[Micros] = 86400 * 1_000_000
_LOOK_AGAIN: Final = 30.0  # seconds; an end whose notification was lost is noticed this late
_TRIES: Final = 20  # against others who change the same item
_SHORTEST, _LONGEST = 1, 3600  # seconds of a lease that a worker may ask for
_log = logging.getLogger(__name__)

Say = Callable[[Draft], Awaitable[None]]
Change = Callable[[WorkItem, Session | None], WorkItem]


class WorkItems:
    """The work items of all self-hosted environments."""

    def __init__(
        self,
        catalog: Catalog,
        sessions: Sessions,
        log: Log,
        intake: Intake,
        notifier: Notifier,
        *,
        lease_seconds: float,
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._log = log
        self._intake = intake
        self._notifier = notifier
        self._lease = int(lease_seconds * 1_000_000)
        self._presence = WorkerPresence(catalog)
        self._watch = WorkWatch(catalog)

    # For the session's runner

    async def want(self, session: Session) -> None:
        """A turn of the session has begun: see to it that a worker comes, if it is on a self-hosted environment."""
        if not session.spec.self_hosted:
            return
        tenant, environment_id = session.tenant, session.spec.environment_id
        for _ in range(_TRIES):
            try:
                await self._change(tenant, environment_id, record_id(session.id), _wanted)
                break
            except NotFound:
                with suppress(Conflict):  # somebody else has added it just now
                    await self._add(session)
                    break
        self._notifier.notify(_topic(environment_id))

    async def say_if_awaited(self, before: Session, say: Say) -> None:
        """Tell whoever follows the session that it waits for a worker, if it does and none has it."""
        if not before.spec.self_hosted:
            return
        said = await self._awaited(await self._sessions.find(before.id))
        if said is not None:
            await say(said)

    async def _awaited(self, session: Session) -> Draft | None:
        environment_id = session.spec.environment_id
        found = await self._catalog.named(kind_of(environment_id), session.tenant, session.id)
        if found is None or not waits_for_worker(session):
            return None
        item = WorkItem.of(found.body)
        if item.state != "queued":
            return None
        stats = await self.stats(session.tenant, environment_id, most=_COUNTED)
        return new_draft(
            "roost.worker_awaited",
            environment_id=environment_id,
            work_id=item.id,
            workers_polling=stats["workers_polling"],
            queued=stats["depth"],
        )

    async def _add(self, session: Session) -> None:
        now = _now()
        item = WorkItem(
            name=session.id,
            environment_id=session.spec.environment_id,
            created_at=now,
            lease=self._lease,
        )
        await self._watch.set(session.tenant, item, now + _DAY)
        await self._catalog.add(
            kind_of(item.environment_id),
            session.tenant,
            record_id(session.id),
            item.body(),
            unique_name=True,
            due_at=item.due_at,
        )

    # For workers

    async def poll(
        self, tenant: str, environment_id: str, worker: str, *, block: float, reclaim: Micros
    ) -> WorkItem | None:
        """An item that nobody has, now claimed; None if there is none within `block` seconds."""
        await self._presence.saw(tenant, environment_id, worker)
        until = anyio.current_time() + block
        with self._notifier.subscribe(_topic(environment_id)) as subscription:
            while True:
                item = await self._offered(tenant, environment_id, reclaim)
                left = until - anyio.current_time()
                if item is not None or left <= 0:
                    return item
                await subscription.until_notified(left)

    async def _offered(self, tenant: str, environment_id: str, reclaim: Micros) -> WorkItem | None:
        now = _now()
        before = now + max(0, RECLAIMED_AFTER - reclaim)
        for record in await self._catalog.due(kind_of(environment_id), before, limit=_LOOKED_AT):
            item = WorkItem.of(record.body)
            if record.tenant != tenant:
                continue
            # One from before there was a watch is looked at by nobody else.
            if item.is_to_be_forgotten(now):
                with suppress(Conflict):  # a turn wants it again
                    await self._delete(record)
                continue
            if item.is_lost(now):
                with suppress(Conflict, NotFound):  # others have seen to it, or it is gone
                    await self._see_to(record)
                continue
            if item.can_be_claimed(now, reclaim) and await self._is_needed(record):
                with suppress(Conflict):  # another poll was quicker
                    claimed = await self._put(record, item.claimed(now))
                    self._notifier.notify(_claims(item.name))
                    return claimed
        return None

    async def _is_needed(self, record: Record) -> bool:
        """Whether its session has something to do; one that has not is stopped, and not handed out."""
        session = await self._session(record.body["name"])
        if session is not None and needs_worker(session):
            return True
        with suppress(Conflict, NotFound):
            await self._put(record, WorkItem.of(record.body).stopped(_now()))
        return False

    async def ack(
        self, tenant: str, environment_id: str, work_id: str, *, claim: int | None
    ) -> WorkItem:
        """A worker takes it. `claim`: which one it was given. :raises NotFound: :raises Conflict: it is another's"""

        def change(item: WorkItem, _session: Session | None) -> WorkItem:
            _check_running(item, work_id, claim)
            return item.acknowledged(self._lease, _now())

        name = parts_of(work_id)[0]
        found = WorkItem.of((await self._get(tenant, environment_id, name)).body)
        if change(found, None) != found:
            await self._watch.set(tenant, found, _now() + self._lease)
        return await self._change(tenant, environment_id, name, change)

    async def heartbeat(
        self,
        tenant: str,
        environment_id: str,
        work_id: str,
        *,
        expected: str | None,
        seconds: int | None,
        claim: int | None,
    ) -> tuple[WorkItem, bool]:
        """Its worker is there: the item, and whether it has it for longer. `claim`: which one it was given.

        :raises NotFound: :raises HeartbeatMismatch: another worker has it, or none
        """
        extended, name = False, parts_of(work_id)[0]
        asked = (
            self._lease if seconds is None else min(max(seconds, _SHORTEST), _LONGEST) * 1_000_000
        )

        def change(item: WorkItem, session: Session | None) -> WorkItem:
            nonlocal extended
            is_others = item.is_taken_away or claim not in (None, item.claim)
            if is_others or item.number != parts_of(work_id)[1]:
                raise HeartbeatMismatch(lease_of(item))
            is_over = session is None or session.state.status is Status.TERMINATED
            by = {"by_key": claim is None, "is_over": is_over}
            item, extended = _heard(item, expected, asked, **by)
            return item

        found = WorkItem.of((await self._get(tenant, environment_id, name)).body)
        if asked < found.lease:  # asked for now, or before and not any more
            await self._watch.set(tenant, found, _now() + asked)
        item = await self._change(tenant, environment_id, name, change)
        if item.state == "stopped":
            self._notifier.notify(_claims(item.name))
        return item, extended

    async def stop(
        self,
        tenant: str,
        environment_id: str,
        work_id: str,
        *,
        force: bool,
        claim: int | None,
        by_worker: bool,
    ) -> WorkItem:
        """Ask its worker to stop it; forced: it is stopped. A worker does that when it runs nothing any more; it
        need not force it, unless somebody else sends the item's heartbeats. If it is not a worker who forces it,
        whatever the worker has begun is unknown. Gives the item as it is for who has stopped it.

        :raises NotFound: :raises Conflict: it is stopped, or another worker has it
        """
        stopped: WorkItem | None = None
        taken: WorkItem | None = None

        def change(item: WorkItem, session: Session | None) -> WorkItem:
            nonlocal stopped
            if taken is not None and not (item.is_taken_away and item.claim == taken.claim):
                stopped = taken.stopped(_now())  # others have offered or stopped it by now
                return item
            _check_running(item, work_id, claim)
            if by_worker and item.is_taken_away:
                raise Conflict(f"the lease of {work_id} is over")
            is_own = item.heartbeat is None or (claim is None and item.by_key)
            now, is_over = _now(), force or (by_worker and is_own)
            if not (is_over or item.state == "queued"):
                stopped = item.asked_to_stop(now)
                return stopped
            stopped = item.stopped(now)
            if by_worker:
                return after_return(stopped, session, now)
            is_needed = session is not None and needs_worker(session)
            return stopped.again(now) if is_needed else stopped

        def take_away(item: WorkItem, session: Session | None) -> WorkItem:
            _check_running(item, work_id, claim)
            return item.taken_away(_now()) if item.is_leased else change(item, session)

        which = tenant, environment_id, parts_of(work_id)[0]
        takes_away = force and not by_worker
        after = await self._change(*which, take_away if takes_away else change)
        if takes_away and after.is_taken_away:
            taken = after
            await self._close_calls(taken)
            after = await self._change(*which, change)
        self._tell(after)
        assert stopped is not None, "it was changed"
        return stopped

    async def standing(
        self, tenant: str, environment_id: str, work_id: str, claim: int
    ) -> Standing | None:
        """What whoever was given an item is to it: it has it, or had it until lately, and may bring results."""
        try:
            record = await self._get(tenant, environment_id, parts_of(work_id)[0])
        except NotFound:
            return None
        return WorkItem.of(record.body).standing_of(claim, _now())

    async def until_over(self, tenant: str, environment_id: str, work_id: str, claim: int) -> None:
        """Wait until whoever was given an item has it no more."""
        session_id = f"sesn_{parts_of(work_id)[0].removeprefix('work_')}"
        with self._notifier.subscribe(_claims(session_id)) as subscription:
            while await self.standing(tenant, environment_id, work_id, claim) == "has":
                await subscription.until_notified(_LOOK_AGAIN)

    # For everybody who may see the environment

    async def get(self, tenant: str, environment_id: str, work_id: str) -> WorkItem:
        """One item. :raises NotFound: absent, or forgotten, or there is a newer one for its session"""
        name, number = parts_of(work_id)
        item = WorkItem.of((await self._get(tenant, environment_id, name)).body)
        if item.number != number:
            raise _absent(work_id)
        return item

    async def page(self, query: RecordQuery) -> list[Record]:
        """Items of an environment, newest first."""
        return await self._catalog.page(query)

    async def update(
        self, tenant: str, environment_id: str, work_id: str, metadata: dict[str, str | None]
    ) -> WorkItem:
        """Other metadata. :raises NotFound:"""
        await self.get(tenant, environment_id, work_id)
        name = parts_of(work_id)[0]
        return await self._change(
            tenant, environment_id, name, lambda item, _: item.patched(metadata)
        )

    async def stats(
        self, tenant: str, environment_id: str, *, most: int = 10_000
    ) -> dict[str, Any]:
        """How many items wait, `most` at most, and how many workers have asked for one lately."""
        soon = _now() + RECLAIMED_AFTER
        found = await self._catalog.due(kind_of(environment_id), soon, limit=most)
        items = [WorkItem.of(record.body) for record in found if record.tenant == tenant]
        queued = [item for item in items if item.state == "queued"]
        oldest = min((item.created_at for item in queued), default=None)
        return {
            "type": "work_queue_stats",
            "depth": sum(item.claimed_at is None for item in queued),
            "pending": sum(item.claimed_at is not None for item in queued),
            "oldest_queued_at": None if oldest is None else iso(oldest),
            "workers_polling": await self._presence.count(tenant, environment_id),
        }

    async def forget(self, tenant: str, environment_id: str) -> None:
        """The environment is gone, and what there was of it."""
        while page := await self._catalog.page(
            RecordQuery(kind=kind_of(environment_id), tenant=tenant, limit=_LOOKED_AT)
        ):
            for record in page:
                with suppress(Conflict):  # the next page has it again
                    await self._delete(record)
                    await self._watch.forget(tenant, record.body["name"])
        await self._presence.forget(tenant, environment_id)

    # Leases that have ended

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Notice workers that are lost, for ever."""
        task_status.started()
        are_watched = False
        while True:
            try:
                if not are_watched:
                    await self.watch_all()
                    are_watched = True
                await self.sweep()
            except RoostError as error:
                _log.warning("cannot look for lost workers: %s", error.message)
            await anyio.sleep(_SWEEPS_EVERY)

    async def watch_all(self) -> None:
        """See to it that every item that a worker has is looked at: those of older servers are not."""
        before: str | None = None
        while page := await self._catalog.every("environment", before=before, limit=_LOOKED_AT):
            for environment in page:
                if (environment.body.get("config") or {}).get("type") == "self_hosted":
                    await self._watch_leased(environment)
            before = page[-1].id

    async def _watch_leased(self, environment: Record) -> None:
        kind, tenant, after = kind_of(environment.id), environment.tenant, None
        while page := await self._catalog.page(
            RecordQuery(kind=kind, tenant=tenant, after=after, limit=_LOOKED_AT)
        ):
            for item in (WorkItem.of(record.body) for record in page):
                if item.is_leased:
                    await self._watch.ensure(tenant, item, item.due_at)
            after = page[-1].id

    async def sweep(self) -> None:
        """Notice workers that are lost, once."""
        for watched in await self._watch.due(_now()):
            with suppress(Conflict, NotFound):  # others have done it; if not, the next sweep does
                await self._look_at(watched)

    async def _look_at(self, watched: Record) -> None:
        tenant, session_id = watched.tenant, watched.body["name"]
        try:
            record = await self._get(tenant, watched.body["environment_id"], record_id(session_id))
        except NotFound:
            return await self._watch.drop(watched)
        item, now = await self._see_to(record), _now()
        is_gone = await self._session(session_id) is None
        if not item.is_leased and (is_gone or item.is_to_be_forgotten(now)):
            # As it was read: a turn may have begun since then, which wants it.
            if item == WorkItem.of(record.body):
                await self._delete(record)
                await self._watch.drop(watched)
        else:
            await self._watch.put_off(
                watched, now + _DAY if item.state == "queued" else item.due_at
            )
        return None

    async def _see_to(self, record: Record) -> WorkItem:
        """The item, taken from a worker that is lost and offered again, if it has one."""

        def take_away(item: WorkItem, _session: Session | None) -> WorkItem:
            return item.taken_away(_now()) if item.is_lost(_now()) else item

        def offer(item: WorkItem, session: Session | None) -> WorkItem:
            if not item.is_taken_away or item.claim != taken.claim:
                return item  # another node was quicker
            is_needed = session is not None and needs_worker(session)
            return item.offered_again(_now()) if is_needed else item.stopped(_now())

        which = record.tenant, record.body["environment_id"], record.id
        taken = await self._change(*which, take_away)
        if not taken.is_taken_away:
            return taken
        about = {"action": "lost", "session": taken.name}
        _log.warning("the worker of %s is lost", taken.id, extra=about)
        self._tell(taken)
        await self._close_calls(taken)
        after = await self._change(*which, offer)
        self._tell(after)
        return after

    async def _close_calls(self, item: WorkItem) -> None:
        """Say of each call that a worker may have begun, and that must not simply be made again, that its outcome is
        unknown. A worker that still brings the result finds that it came too late.
        """
        session = await self._session(item.name)
        if session is None:
            return
        content = [{"type": "text", "text": CLOSED["worker_lost"]}]
        for pending in session.state.pending:
            if pending.kind == "tool" and not await self._is_repeatable(session, pending.event_id):
                said = {"content": content, "is_error": True, "closed": "worker_lost"}
                draft = new_draft("user.tool_result", tool_use_id=pending.event_id, **said)
                receipt = Receipt(f"lost:{pending.event_id}", "")
                # Its result has come, or somebody has interrupted, or the session is over.
                with suppress(InvalidRequest, SessionClosed, NotFound):
                    await self._intake.accept(session.id, [draft], [receipt])

    async def _is_repeatable(self, session: Session, event_id: str) -> bool:
        at = await self._log.seq_of(session.id, event_id)
        for call in await self._log.read(session.id, at - 1, 1) if at else ():
            return call.fields.get("name") in REPEATABLE
        return False

    # Records

    async def _session(self, session_id: str) -> Session | None:
        try:
            return await self._sessions.find(session_id)
        except NotFound:
            return None

    async def _get(self, tenant: str, environment_id: str, name: str) -> Record:
        try:
            return await self._catalog.get(kind_of(environment_id), tenant, name)
        except NotFound:
            raise _absent(name) from None

    async def _change(
        self, tenant: str, environment_id: str, name: str, change: Change
    ) -> WorkItem:
        """Change the item by what its session is, both as they are now."""
        for _ in range(_TRIES):
            record = await self._get(tenant, environment_id, name)
            item = WorkItem.of(record.body)
            after = change(item, await self._session(item.name))
            if after == item:
                return item
            with suppress(Conflict):
                return await self._put(record, after)
        raise Conflict(f"{name} is being changed by others; try again")

    async def _put(self, record: Record, item: WorkItem) -> WorkItem:
        """:raises Conflict: it was changed since it was read"""
        await self._catalog.change(
            record.kind,
            record.tenant,
            record.id,
            lambda _: item.body(),
            expected=record.version,
            due_at=item.due_at,
        )
        return item

    def _tell(self, item: WorkItem) -> None:
        """Wake polls, and whoever follows a session for a claim that may be over."""
        self._notifier.notify(_topic(item.environment_id))
        self._notifier.notify(_claims(item.name))

    async def _delete(self, record: Record) -> None:
        """:raises Conflict: it was changed since it was read"""
        which = record.kind, record.tenant, record.id
        with suppress(NotFound):
            await self._catalog.delete(*which, expected=record.version)


def lease_of(item: WorkItem) -> dict[str, Any]:
    """The lease of an item, as whoever has not got it is told."""
    return {
        "last_heartbeat": item.heartbeat,
        "lease_extended": False,
        "state": item.state,
        "ttl_seconds": max(1, item.lease // 1_000_000),
    }


def _wanted(item: WorkItem, _session: Session | None) -> WorkItem:
    return item.wanted_again(_now())


def _heard(
    item: WorkItem, expected: str | None, lease: Micros, *, by_key: bool, is_over: bool
) -> tuple[WorkItem, bool]:
    """An item after a heartbeat, and whether its worker has it for longer. `is_over`: its session has ended.

    :raises HeartbeatMismatch: it is not the next one
    """
    now = _now()
    if item.state == "stopped":
        return item, False
    if is_over:
        return item.stopped(now), False
    if item.state == "stopping":
        return item.beaten(iso(now), item.lease, now, by_key=by_key), True
    if not item.accepts(expected, now):
        raise HeartbeatMismatch(lease_of(item))
    return item.beaten(iso(now), lease, now, by_key=by_key), True


def _check_running(item: WorkItem, work_id: str, claim: int | None) -> None:
    """:raises NotFound: :raises Conflict: it is over, or another worker has it"""
    number = parts_of(work_id)[1]
    if number == 0 or number > item.number:
        raise _absent(work_id)
    if number < item.number or item.state == "stopped":
        raise Conflict(f"{work_id} is stopped")
    if claim is not None and (claim != item.claim or claim == item.ended_claim):
        raise Conflict(f"{work_id} is another worker's by now")


def _absent(work_id: str) -> NotFound:
    return NotFound(f"there is no work item {work_id}")


def kind_of(environment_id: str) -> str:
    """What the records of an environment's items are."""
    return f"{_KIND}:{environment_id}"


def _topic(environment_id: str) -> str:
    return f"work:{environment_id}"


def _claims(session_id: str) -> str:
    return f"work_claims:{session_id}"


def _now() -> Micros:
    return time.time_ns() // 1000
