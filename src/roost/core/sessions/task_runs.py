"""Runs of tasks: a session works on each to its end, and the end is written to the task.

They are rows of the same table as those of deployments, and go the same way (`scheduled_runs.py`). What is written
besides:

1. a run by hand, and the task that runs (`running`), in one commit;
2. with the session's id: that the task runs, if its schedule has started it;
3. when the session rests: the outcome, in the run and in the task, in one commit.

The end is read from the session's log, so it does not matter who was there when it came: whoever was notified looks
at once, and any node some time later. Servers of an older version have runs in the bodies of their tasks; they become
rows when somebody asks for them, or goes on with one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import anyio
from anyio.abc import TaskStatus
from msgspec.structs import replace

from roost.core.read.outcome import is_rest, outcome_of
from roost.core.records.tasks import Tasks
from roost.core.sessions.scheduled_runs import (
    LEASE_SECONDS,
    Consequence,
    RunParts,
    ScheduledRuns,
    rests,
)
from roost.domain import task
from roost.domain.deployment import Fault
from roost.domain.events import Micros
from roost.domain.schedule import SECOND
from roost.domain.session import Session, Status
from roost.domain.task import Body
from roost.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound, RoostError
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Kind, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import EventQuery, Log, Receipt
from roost.ports.notifier import Notifier, Subscriptions
from roost.ports.runs import Run, RunQuery

_PAGE: Final = 100
_LOOK_AGAIN: Final = 30.0  # seconds; what servers of an older version have left is found this late
_BREATHE: Final = 0.2  # seconds between two looks: a session at work notifies of each thing it does
_OPTIONS: Final = (
    "trust_level",
    "workspace",
    "mount_scope",
    "harness",
    "sandbox_fallback",
    "vault_ids",
)
_GOES_ON: Final = "session_rate_limited_error"
"""After any other fault a scheduled run would fail again: the task is paused until somebody looks."""

_log = logging.getLogger(__name__)


class TaskRuns(ScheduledRuns):
    """Starts runs of tasks and sees them to their end."""

    kind: ClassVar[Kind] = "task"
    prefix: ClassVar[str] = "run"
    follow_again: ClassVar[Micros] = 15 * SECOND

    def __init__(
        self, catalog: Catalog, board: Tasks, parts: RunParts, log: Log, notifier: Notifier
    ) -> None:
        super().__init__(parts)
        self._catalog = catalog
        self._board = board
        self._log = log
        self._notifier = notifier
        self._watched: dict[str, Run] = {}
        self._subscriptions: Subscriptions | None = None

    async def start(
        self, caller: Key, task_id: str, params: Mapping[str, Any], key: str | None
    ) -> Run:
        """A run of the task, begun. With a known idempotency key, the one begun then.

        :raises NotFound: :raises Conflict: it runs already :raises IdempotencyMismatch:
        :raises RoostError: why its session could not be made
        """
        record = await self._adopted(await self._board.seen(caller, task_id))
        run = self._by_hand(caller, record, params, key)
        try:
            known = await self._runs.get(self.kind, caller.tenant, run.id)
        except NotFound:
            await self._lifecycle.specs.of(caller, _asked(run, record))
            known = await self._begun(run)
        if known.body["params"] != run.body["params"]:
            raise IdempotencyMismatch()
        if known.state == "open":
            await self.begin(known, record)
        return await self._runs.get(self.kind, caller.tenant, run.id)

    def _by_hand(
        self, caller: Key, record: Record, params: Mapping[str, Any], key: str | None
    ) -> Run:
        run_id = mint("run")
        if key is not None:
            run_id = f"run_{hashlib.sha256(f'{record.id}:{key}'.encode()).hexdigest()[:32]}"
        look_at = self._clock() + LEASE_SECONDS * SECOND
        who = (caller.id, caller.principal, caller.trust_ceiling)
        run = self.new_run(record, f"manual:{run_id}", *who, look_at=look_at)
        # What the task's author may not ask for is refused by name, and not silently lowered.
        body = {**run.body, "params": dict(params), "ceiling": caller.trust_ceiling}
        return replace(run, id=run_id, body=body)

    async def _begun(self, run: Run) -> Run:
        def amend(record: Record, unfinished: Sequence[Run]) -> tuple[Body, Sequence[Run]]:
            body = task.whole(record.body)
            if any(other.id == run.id for other in unfinished):
                return body, []
            if unfinished:
                raise Conflict(
                    "the task runs already", hint="Wait for its end, or interrupt its session."
                )
            return task.begun(body), [run]

        await self._runs.amend(self.kind, run.tenant, run.owner, amend)
        return await self._runs.get(self.kind, run.tenant, run.id)

    async def page(self, caller: Key, task_id: str, query: RunQuery) -> list[Run]:
        """A page of a task's runs, newest first. :raises NotFound: :raises InvalidRequest:"""
        await self._adopted(await self._board.seen(caller, task_id))
        return await self._runs.page(query)

    async def seen(self, caller: Key, task_id: str, run_id: str) -> Run:
        """One of a task's runs. :raises NotFound:"""
        record = await self._adopted(await self._board.seen(caller, task_id))
        run = await self._runs.get(self.kind, caller.tenant, run_id)
        if run.owner != record.id:
            raise NotFound(f"run {run_id} was not found")
        return run

    # What is different from runs of deployments

    async def record_of(self, run: Run) -> Record:
        """The task."""
        return await self._board.get(run.tenant, run.owner)

    def noted(self, record: Record) -> dict[str, Any]:
        """How it runs; what the schedule starts runs as the task says."""
        return {"params": {}}

    async def look(self, caller: Key, run: Run, record: Record) -> Fault | None:
        """What a scheduled run refers to that is gone; who starts one by hand is told by the error itself."""
        if run.scheduled_at is None:
            return None
        agent = {"id": record.body["agent"], "version": None}
        place = record.body["environment_id"]
        body = {"agent": agent, "environment_id": place, "vault_ids": [], "resources": []}
        return await self._faults.look(caller, body)

    async def make(self, caller: Key, run: Run, record: Record) -> Session:
        """Its session."""
        text = task.prompt(record.body, run.body["params"].get("instructions"))
        said = new_draft("user.message", content=[{"type": "text", "text": text}])
        receipt = Receipt(f"run:{run.id}", "")
        return await self._lifecycle.create(caller, _asked(run, record), [said], receipt)

    async def has_started(self, run: Run, record: Record) -> bool:
        """The task runs, from now on at the latest."""
        body = {**run.body, "status": "running"}
        after = replace(run, body=body, look_at=self._clock() + self.follow_again)
        settled = await self._runs.settle(
            after, "open", change=lambda record: task.begun(task.whole(record.body))
        )
        self._watch(after)
        return settled is not None

    def has_failed(self, run: Run, fault: Fault, *, passing: bool) -> Consequence:
        """The task has failed; its schedule rests until somebody has looked, if it would fail again."""
        pauses = run.scheduled_at is not None and not passing and fault["type"] != _GOES_ON

        def change(record: Record) -> Body:
            body = task.ended(task.whole(record.body), "failed", fault["message"])
            reason = {"type": "error", "error": {"type": fault["type"]}}
            return task.paused(body, reason) if pauses else body

        return Consequence(change=change, pauses=pauses)

    # To the end

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """See runs to their end when their sessions notify, for ever. What is missed, the scheduler finds."""
        with self._notifier.subscribe_many() as subscriptions:
            self._subscriptions = subscriptions
            task_status.started()
            while True:
                await self._adopt_all()
                with anyio.move_on_after(_LOOK_AGAIN):
                    await self._look_where_notified(subscriptions)

    async def _look_where_notified(self, subscriptions: Subscriptions) -> None:
        while True:
            await subscriptions.wait(_LOOK_AGAIN)
            await anyio.sleep(_BREATHE)
            subscriptions.previews()
            notified = set(subscriptions.notified())
            for session_id in notified & self._watched.keys():
                with anyio.CancelScope(shield=True):
                    await self._look(self._watched[session_id])

    async def _look(self, run: Run) -> None:
        """Take a run as far as it goes. What fails is tried again later, by the scheduler of any node."""
        try:
            await self.advance(await self._runs.get(self.kind, run.tenant, run.id))
        except NotFound:
            self._forget(run)
        except RoostError as error:
            _log.warning("run %s: %s", run.id, error.message, extra={"action": "run"})

    async def follow(self, run: Run, record: Record, session: Session | None) -> bool:
        """Its end, as the session's log has it."""
        if session is None:
            await self._end(run, "cancelled", "", "Its session was deleted.")
            return False
        if await self._was_withdrawn(session):
            await self._end(run, "cancelled", "", "It was interrupted.")
            return False
        state = session.state
        if state.status is Status.TERMINATED and state.archived_at is None:
            said = await self._last_error(session) or "The session was terminated."
            await self._end(run, "failed", "", said)
            return False
        if not rests(session):
            await self._goes_on(run, session)
            return True
        return await self._rested(run, session)

    async def _goes_on(self, run: Run, session: Session) -> None:
        self._watch(run)
        status = "waiting" if session.state.status is Status.IDLE else "running"
        look_at = self._clock() + self.follow_again
        after = replace(run, body={**run.body, "status": status}, look_at=look_at)
        await self._runs.settle(after, "started")

    async def _rested(self, run: Run, session: Session) -> bool:
        query = EventQuery(types=["session.status_idle"], order="desc", limit=1)
        found_rests = await self._log.page(session.id, query)
        rested = bool(found_rests) and is_rest(found_rests[0])
        if not rested and session.state.archived_at is not None:
            await self._end(run, "cancelled", "", "Its session was archived.")
            return False
        if not rested:
            await self._goes_on(run, session)  # it has moved on since
            return True
        found = await outcome_of(self._log, session.id, found_rests[0])
        status = "succeeded" if found.stop_reason == "end_turn" else "failed"
        error = None if status == "succeeded" else found.error or found.stop_reason
        if found.interrupted:
            status, error = "cancelled", "It was interrupted."
        await self._end(run, status, found.text, error)
        return False

    async def _was_withdrawn(self, session: Session) -> bool:
        """Whether its message never got to the agent."""
        query = EventQuery(types=["user.message"], limit=1)
        return any(entry.withdrawn for entry in await self._log.page(session.id, query))

    async def _last_error(self, session: Session) -> str | None:
        query = EventQuery(types=["session.error"], order="desc", limit=1)
        found = await self._log.page(session.id, query)
        return str(found[0].fields["error"].get("message", "")) if found else None

    async def _end(self, run: Run, status: str, outcome: str, error: str | None) -> None:
        text = outcome[: task.LONGEST_OUTCOME]
        body = {**run.body, "status": status, "outcome": text, "said": error}
        after = replace(run, look_at=0, ended_at=self._clock(), body=body)
        await self._runs.settle(
            after,
            "started",
            change=lambda record: task.ended(task.whole(record.body), status, text or error or ""),
        )
        self._forget(run)
        about = {"action": "run", "session": run.session_id}
        _log.info("run %s of %s: %s", run.id, run.owner, status, extra=about)

    def _watch(self, run: Run) -> None:
        if run.session_id is not None and run.session_id not in self._watched:
            self._watched[run.session_id] = run
            if self._subscriptions is not None:
                self._subscriptions.add(run.session_id)

    def _forget(self, run: Run) -> None:
        known = self._watched.pop(run.session_id or "", None)
        if known is not None and self._subscriptions is not None:
            self._subscriptions.remove(run.session_id or "")

    # What servers of an older version have left

    async def _adopted(self, record: Record) -> Record:
        """The task, whose runs are rows of their own."""
        if not record.body["runs"]:
            return record

        def amend(record: Record, unfinished: Sequence[Run]) -> tuple[Body, Sequence[Run]]:
            runs = [self._old_run(record, each) for each in record.body["runs"]]
            return {**task.whole(record.body), "runs": []}, runs

        await self._runs.amend(self.kind, record.tenant, record.id, amend)
        return await self._board.get(record.tenant, record.id)

    def _old_run(self, record: Record, old: Body) -> Run:
        run = self.new_run(
            record, f"manual:{old['id']}", old["key_id"], record.created_by, "full", look_at=0
        )
        over = old["status"] in task.ENDED
        body = {**run.body, "params": old["params"], "ceiling": "full", "status": old["status"]}
        return replace(
            run,
            id=old["id"],
            state="open" if old["session_id"] is None and not over else "started",
            look_at=0 if over else self._clock(),
            session_id=old["session_id"],
            created_at=old["created_at"],
            started_at=old["created_at"],
            ended_at=old["ended_at"],
            body={**body, "outcome": old["outcome"], "said": old["error"]},
        )

    async def _adopt_all(self) -> None:
        """Those that were open: each had a record of its own."""
        try:
            query = RecordQuery(kind="run", tenant=SYSTEM_TENANT, limit=_PAGE)
            for noted in await self._catalog.page(query):
                await self._adopt(noted)
        except RoostError as error:
            _log.warning("cannot list runs: %s", error.message, extra={"action": "run"})

    async def _adopt(self, noted: Record) -> None:
        try:
            await self._adopted(await self._board.get(noted.body["tenant"], noted.body["task_id"]))
            await self._catalog.delete("run", SYSTEM_TENANT, noted.id)
        except NotFound:  # the task was deleted, or another node was faster
            return


def _asked(run: Run, record: Record) -> dict[str, Any]:
    """What its session is made with. :raises InvalidRequest: the task has no agent or environment"""
    params, body = run.body["params"], record.body
    agent = params.get("agent") or body["agent"]
    environment = params.get("environment_id") or body["environment_id"]
    for name, value in (("agent", agent), ("environment_id", environment)):
        if not value:
            raise InvalidRequest(f"{name}: required, here or in the task")
    return {
        "agent": agent,
        "environment_id": environment,
        "title": body["title"],
        "task_id": record.id,
        **{name: params[name] for name in _OPTIONS if params.get(name) is not None},
    }
