"""Runs of tasks: a session works on each to its end, and the end is written to the task.

Every run has a record of its own while it is open. What is written, in this order:

1. the open run;
2. the run in its task (`starting`);
3. its session, with the first message, under a receipt of the run's id;
4. the session's id in the task (`running`);
5. when the session rests: the outcome, in the task;
6. the open run goes.

Killed between any two, the next look at the open run goes on from there: 1 without 2 was never
promised and goes; 3 again is the same session; 5 again changes nothing. The end is read from the
session's log, so it does not matter who was there when it came.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from roost.core.access.keys import Keyring
from roost.core.read.outcome import is_rest, outcome_of
from roost.core.records.tasks import Tasks
from roost.core.sessions.lifecycle import Lifecycle
from roost.domain import task
from roost.domain.events import Micros
from roost.domain.session import Session, Status
from roost.domain.task import Body
from roost.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    RateLimited,
    RoostError,
    SandboxFailed,
    Unavailable,
)
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import EventQuery, Log, Receipt
from roost.ports.notifier import Notifier, Subscriptions

_PAGE: Final = 100
_LOOK_AGAIN: Final = 30.0  # seconds; what other nodes have left is found this late
_BREATHE: Final = 0.2  # seconds between two looks: a session at work notifies of each thing it does
_ABANDONED: Final = 60_000_000  # microseconds after which a run that is in no task was given up
_OPTIONS: Final = (
    "trust_level",
    "workspace",
    "mount_scope",
    "harness",
    "sandbox_fallback",
    "vault_ids",
)
_log = logging.getLogger(__name__)


class TaskRuns:
    """Starts runs and sees them to their end."""

    def __init__(
        self,
        catalog: Catalog,
        board: Tasks,
        lifecycle: Lifecycle,
        keyring: Keyring,
        log: Log,
        notifier: Notifier,
    ) -> None:
        self._catalog = catalog
        self._board = board
        self._lifecycle = lifecycle
        self._keyring = keyring
        self._log = log
        self._notifier = notifier
        self._starting: set[str] = set()
        self._sessions: dict[str, str] = {}
        self._subscriptions: Subscriptions | None = None

    async def start(
        self, caller: Key, task_id: str, params: Mapping[str, Any], key: str | None
    ) -> Body:
        """A run of the task, begun. With a known idempotency key, the one begun then.

        :raises NotFound: :raises Conflict: it runs already :raises IdempotencyMismatch:
        :raises RoostError: why its session could not be made
        """
        record = await self._board.seen(caller, task_id)
        run = _new_run(caller, record, params, key)
        known = [other for other in record.body["runs"] if other["id"] == run["id"]]
        if known and known[0]["params"] != run["params"]:
            raise IdempotencyMismatch()
        if known:
            return {**known[0], "task_id": task_id}
        self._starting.add(run["id"])
        try:
            return await self._begin(caller, record, run)
        finally:
            self._starting.discard(run["id"])

    async def _begin(self, caller: Key, record: Record, run: Body) -> Body:
        task.begun(record.body, run)  # refuse before anything is written
        await self._open(run["id"], {"tenant": record.tenant, "task_id": record.id})
        await self._change(record, lambda body: task.begun(body, run))
        try:
            session = await self._make(caller, record, run)
        except RoostError:
            await self._change(record, lambda body: task.without(body, run["id"]))
            await self._close(run["id"])
            raise
        after = await self._started(record, run, session)
        return {**task.run_in(after.body, run["id"]), "task_id": record.id}

    async def _open(self, run_id: str, body: Body) -> None:
        try:
            await self._catalog.get("run", SYSTEM_TENANT, run_id)
        except NotFound:
            await self._catalog.add("run", SYSTEM_TENANT, run_id, body, unique_name=False)

    async def _close(self, run_id: str) -> None:
        session_id = self._sessions.pop(run_id, None)
        if session_id is not None and self._subscriptions is not None:
            self._subscriptions.remove(session_id)
        with suppress(NotFound):  # another node was faster
            await self._catalog.delete("run", SYSTEM_TENANT, run_id)

    async def _make(self, caller: Key, record: Record, run: Body) -> Session:
        params, body = run["params"], record.body
        agent = params.get("agent") or body["agent"]
        environment = params.get("environment_id") or body["environment_id"]
        for name, value in (("agent", agent), ("environment_id", environment)):
            if not value:
                raise InvalidRequest(f"{name}: required, here or in the task")
        asked = {
            "agent": agent,
            "environment_id": environment,
            "title": body["title"],
            "task_id": record.id,
            **{name: params[name] for name in _OPTIONS if params.get(name) is not None},
        }
        text = task.prompt(body, params.get("instructions"))
        said = new_draft("user.message", content=[{"type": "text", "text": text}])
        receipt = Receipt(f"run:{run['id']}", "")
        return await self._lifecycle.create(caller, asked, [said], receipt)

    async def _started(self, record: Record, run: Body, session: Session) -> Record:
        after = await self._change(
            record,
            lambda body: task.moved(body, run["id"], status="running", session_id=session.id),
        )
        self._watch(run["id"], session.id)
        return after

    async def _change(self, record: Record, change: Callable[[Body], Body]) -> Record:
        return await self._catalog.change(
            "task", record.tenant, record.id, lambda now: change(now.body)
        )

    # To the end

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """See open runs to their end, for ever."""
        with self._notifier.subscribe_many() as subscriptions:
            self._subscriptions = subscriptions
            task_status.started()
            while True:
                await self._look_at_all()
                with anyio.move_on_after(_LOOK_AGAIN):
                    await self._look_where_notified(subscriptions)

    async def _look_where_notified(self, subscriptions: Subscriptions) -> None:
        while True:
            await subscriptions.wait(_LOOK_AGAIN)
            await anyio.sleep(_BREATHE)
            subscriptions.previews()
            notified = set(subscriptions.notified())
            for run_id in [run for run, session in self._sessions.items() if session in notified]:
                with anyio.CancelScope(shield=True):
                    await self._look(run_id)

    async def _look_at_all(self) -> None:
        after = None
        while True:
            query = RecordQuery(kind="run", tenant=SYSTEM_TENANT, after=after, limit=_PAGE)
            try:
                page = await self._catalog.page(query)
            except RoostError as error:
                return _log.warning("cannot list runs: %s", error.message, extra={"action": "run"})
            for record in page:
                await self._look(record.id)
            if len(page) < _PAGE:
                return None
            after = page[-1].id

    async def _look(self, run_id: str) -> None:
        """Take an open run as far as it goes. What fails is tried again at the next look."""
        if run_id in self._starting:
            return
        try:
            await self._go_on(run_id)
        except RoostError as error:
            _log.warning("run %s: %s", run_id, error.message, extra={"action": "run"})

    async def _go_on(self, run_id: str) -> None:
        try:
            noted = await self._catalog.get("run", SYSTEM_TENANT, run_id)
            record = await self._board.get(noted.body["tenant"], noted.body["task_id"])
            run = task.run_in(record.body, run_id)
        except NotFound:
            await self._abandon(run_id)
            return
        if run["status"] in task.ENDED:
            await self._close(run_id)
        elif session := await self._session_of(record, run):
            self._watch(run_id, session.id)
            await self._follow(record, run, session)

    async def _abandon(self, run_id: str) -> None:
        """It is in no task: it was deleted, or somebody died right at its beginning."""
        try:
            noted = await self._catalog.get("run", SYSTEM_TENANT, run_id)
        except NotFound:
            return
        if noted.created_at + _ABANDONED < _now():
            await self._close(run_id)

    async def _session_of(self, record: Record, run: Body) -> Session | None:
        """The run's session, made now if somebody died before it was; None: it cannot be."""
        try:
            if run["session_id"] is not None:
                return await self._lifecycle.get(record.tenant, run["session_id"])
            caller = await self._keyring.named(record.tenant, run["key_id"])
            session = await self._make(caller, record, run)
            await self._started(record, run, session)
        except (Unavailable, SandboxFailed, RateLimited):
            raise  # it may be had later
        except NotFound as gone:
            # Somebody has deleted it, which is allowed only when it rests: nobody waits for it.
            made = run["session_id"] is not None
            said = "Its session was deleted." if made else gone.message
            await self._end(record, run, "cancelled" if made else "failed", "", said)
            return None
        except RoostError as error:
            await self._end(record, run, "failed", "", error.message)
            return None
        return session

    async def _follow(self, record: Record, run: Body, session: Session) -> None:
        state = session.state
        if await self._was_withdrawn(session):
            return await self._end(record, run, "cancelled", "", "It was interrupted.")
        if state.status is Status.TERMINATED and state.archived_at is None:
            said = await self._last_error(session) or "The session was terminated."
            return await self._end(record, run, "failed", "", said)
        waits = state.status is Status.IDLE and bool(state.pending)
        if state.status in (Status.RUNNING, Status.RESCHEDULING) or waits:
            status = "waiting" if waits else "running"
            if run["status"] != status:
                await self._change(record, lambda body: task.moved(body, run["id"], status=status))
            return None
        query = EventQuery(types=["session.status_idle"], order="desc", limit=1)
        rests = await self._log.page(session.id, query)
        if state.archived_at is not None and not (rests and is_rest(rests[0])):
            return await self._end(record, run, "cancelled", "", "Its session was archived.")
        [rest] = rests
        if not is_rest(rest):
            return None  # it has moved on since
        found = await outcome_of(self._log, session.id, rest)
        status = "succeeded" if found.stop_reason == "end_turn" else "failed"
        error = None if status == "succeeded" else found.error or found.stop_reason
        if found.interrupted:
            status, error = "cancelled", "It was interrupted."
        return await self._end(record, run, status, found.text, error)

    async def _was_withdrawn(self, session: Session) -> bool:
        """Whether its message never got to the agent."""
        query = EventQuery(types=["user.message"], limit=1)
        return any(entry.withdrawn for entry in await self._log.page(session.id, query))

    async def _last_error(self, session: Session) -> str | None:
        query = EventQuery(types=["session.error"], order="desc", limit=1)
        found = await self._log.page(session.id, query)
        return str(found[0].fields["error"].get("message", "")) if found else None

    async def _end(
        self, record: Record, run: Body, status: str, outcome: str, error: str | None
    ) -> None:
        await self._change(
            record,
            lambda body: task.ended(body, run["id"], status, _now(), outcome=outcome, error=error),
        )
        await self._close(run["id"])
        about = {"action": "run", "session": run["session_id"]}
        _log.info("run %s of %s: %s", run["id"], record.id, status, extra=about)

    def _watch(self, run_id: str, session_id: str) -> None:
        self._sessions[run_id] = session_id
        if self._subscriptions is not None:
            self._subscriptions.add(session_id)


def _new_run(caller: Key, record: Record, params: Mapping[str, Any], key: str | None) -> Body:
    run_id = mint("run")
    if key is not None:
        run_id = f"run_{hashlib.sha256(f'{record.id}:{key}'.encode()).hexdigest()[:32]}"
    return {
        "id": run_id,
        "session_id": None,
        "status": "starting",
        "outcome": None,
        "error": None,
        "created_at": _now(),
        "ended_at": None,
        "key_id": caller.id,
        "params": dict(params),
    }


def _now() -> Micros:
    return time.time_ns() // 1000
