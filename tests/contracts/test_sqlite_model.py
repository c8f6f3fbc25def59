"""Random walks over the store, each compared with a model that is a dictionary and the ledger.

The model has no batches, no cache, no chains and no disk: whatever the store adds to the rules for
the sake of speed and durability must not show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from msgspec.structs import replace

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Pending, State
from roost.errors import IdempotencyMismatch, NotFound, NotWaiting, RoostError
from roost.ids import mint
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery, Receipt
from roost.stores.sqlite import SqliteStore
from roost.testing.stage import END_TURN, TENANT, allow, answer, at, message, spec

NODES = ("node_a", "node_b")
SEQS = st.integers(0, 90)


@dataclass
class Log:
    """One session of the model."""

    state: State
    entries: list[Entry] = field(default_factory=list)
    waiting: dict[int, Entry] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    receipts: dict[str, tuple[str, Entry]] = field(default_factory=dict)

    def apply(self, change: ledger.Change, takes: list[Entry] = []) -> list[Entry]:  # noqa: B006
        if any(e.seq not in self.waiting for e in takes) or len({e.seq for e in takes}) < len(
            takes
        ):
            raise NotWaiting()
        self.state = change.state
        self.entries += change.entries
        self.waiting |= {entry.seq: entry for entry in change.opened}
        again = {entry.id: entry.seq for entry in change.entries}
        withdrawn = [self.waiting[seq] for seq in change.consumed if seq in self.waiting]
        for entry in {entry.seq: entry for entry in [*takes, *withdrawn]}.values():
            del self.waiting[entry.seq]
            self.taken[entry.seq] = again.get(entry.id, 0)
        return change.entries

    def accept(self, draft: Draft, receipt: Receipt | None, most: int) -> list[Entry]:
        if receipt and receipt.key in self.receipts:
            fingerprint, entry = self.receipts[receipt.key]
            if fingerprint != receipt.fingerprint:
                raise IdempotencyMismatch()
            return [entry]
        waiting = [self.waiting[seq] for seq in sorted(self.waiting)]
        written = self.apply(ledger.admit(self.state, [draft], at(0), most, waiting=waiting))[:1]
        if receipt:
            self.receipts[receipt.key] = receipt.fingerprint, written[0]
        return written

    def page(self, query: EventQuery) -> list[Entry]:
        as_of = self.state.head if query.as_of is None else query.as_of
        before = as_of + 1 if query.before is None else min(query.before, as_of + 1)
        shown = [
            entry
            for entry in self.entries
            if query.after < entry.seq < before
            and (not query.types or entry.type in query.types)
            and not (entry.queued and 0 < self.taken.get(entry.seq, 0) <= as_of)
        ]
        return (shown if query.order == "asc" else shown[::-1])[: query.limit]


def timeless(found: Any) -> Any:
    """What the model can know of an outcome: no times, and no ids that the ledger minted."""
    if isinstance(found, RoostError):
        return type(found)
    if isinstance(found, list):
        return [timeless(one) for one in found]
    if isinstance(found, Entry):
        ours = found.type.startswith(("user.", "agent."))
        return found.seq, found.type, found.queued, found.id if ours else None
    if isinstance(found, State):
        return replace(found, thread_id="", sent_at=0, active_since=0, active=0, archived_at=None)
    return found


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return timeless(call())
    except RoostError as error:
        return timeless(error)


class Machine(RuleBasedStateMachine):
    sessions: Bundle[str] = Bundle("sessions")
    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Log] = {}
        self.living: set[str] = set()
        with ExitStack() as stack:
            self.portal: BlockingPortal = stack.enter_context(start_blocking_portal("asyncio"))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.path = Path(folder) / "roost.db"
            self.open()
            self.stack = stack.pop_all()  # if it cannot be opened, nobody tears it down

    def open(self) -> None:
        self.opened = self.portal.wrap_async_context_manager(SqliteStore.open(self.path))
        self.store = self.opened.__enter__()

    def teardown(self) -> None:
        self.opened.__exit__(None, None, None)
        self.stack.close()

    def call(self, method: Any, *args: Any, **named: Any) -> Any:
        async def run() -> Any:
            with anyio.fail_after(60):
                return await method(*args, **named)

        return self.portal.call(run)

    def same(self, real: Callable[[], Any], model: Callable[[], Any]) -> Any:
        found, expected = outcome(real), outcome(model)
        assert found == expected
        return found

    @initialize(target=sessions)
    def first(self) -> Any:
        return self.create(told=False)

    @rule(target=sessions, told=st.booleans())
    def create(self, told: bool) -> Any:
        session_id, drafts = mint("sesn"), [message()] if told else []
        self.call(self.store.sessions.create, TENANT, session_id, spec(), drafts)
        log = self.model[session_id] = Log(State(thread_id="", agent_name="helper"))
        log.apply(ledger.admit(log.state, drafts, at(0), 10))
        return session_id

    @rule(
        session_id=sessions,
        draft=st.sampled_from(["message", "interrupt", "allow a", "allow b"]),
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        fingerprint=st.sampled_from(["f1", "f1", "f2"]),
        most=st.sampled_from([2, 5, 1000]),
    )
    def accept(
        self, session_id: str, draft: str, key: str | None, fingerprint: str, most: int
    ) -> None:
        sent = {
            "message": message(),
            "interrupt": new_draft("user.interrupt"),
            "allow a": allow(f"{session_id}.a"),
            "allow b": allow(f"{session_id}.b"),
        }[draft]
        receipt = Receipt(key, fingerprint) if key else None
        self.same(
            lambda: (
                self.call(
                    self.store.log.accept, session_id, [sent], receipts=[receipt], max_queued=most
                ).entries
            ),
            lambda: self._log(session_id).accept(sent, receipt, most),
        )

    def _log(self, session_id: str) -> Log:
        if session_id not in self.model:
            raise NotFound()
        return self.model[session_id]

    @rule(node=st.sampled_from(NODES), lives=st.booleans())
    def renew(self, node: str, lives: bool) -> None:
        self.call(self.store.log.renew, node, 600 if lives else 0)
        (self.living.add if lives else self.living.discard)(node)

    @rule(target=leases, node=st.sampled_from(NODES), limit=st.integers(1, 3))
    def claim(self, node: str, limit: int) -> Any:
        if node not in self.living:
            self.renew(node, lives=True)
        claimable = {
            session_id: log
            for session_id, log in self.model.items()
            if log.state.status in ("running", "rescheduling")
            and (log.state.owner is None or log.state.owner not in self.living)
        }
        claimed: list[Lease] = self.call(self.store.log.claim, node, limit)
        assert len(claimed) == min(limit, len(claimable))
        for lease in claimed:
            log = claimable.pop(lease.session_id)
            log.state = ledger.take(log.state, node)
            assert lease == Lease(lease.session_id, node, log.state.generation)
        return multiple(*claimed)

    @rule(
        lease=leases,
        take=st.sampled_from(["all", "some", "none", "again"]),
        size=st.sampled_from([0, 1, 3, 70]),
    )
    def append(self, lease: Lease, take: str, size: int) -> None:
        log = self.model.get(lease.session_id)
        waiting = list(log.waiting.values()) if log else []
        taken = [e for e in log.entries if e.seq in log.taken] if log else []
        takes = {"all": waiting, "some": waiting[1::2], "none": [], "again": taken[-1:]}[take]
        batch = Batch(
            takes=takes, drafts=[answer()] * size, turn=TurnMark.BEGIN if takes else TurnMark.NONE
        )
        self.same(
            lambda: self.call(self.store.log.append, lease, batch),
            lambda: self._owned(lease).apply(
                ledger.work(self._owned(lease).state, lease, batch, at(0)), takes
            ),
        )

    @rule(lease=leases, late=st.booleans(), asks=st.booleans(), keep=st.booleans())
    def finish(self, lease: Lease, late: bool, asks: bool, keep: bool) -> None:
        log = self.model.get(lease.session_id)
        seen = log.state.head - late if log else 0
        asked = [Draft.of("agent.tool_use", f"{lease.session_id}.{n}") for n in "ab"]
        blocks = [Pending(draft.id, "confirmation") for draft in asked]
        batch = Batch(drafts=asked, blocks=blocks) if asks else Batch()

        def model() -> Any:
            log = self._owned(lease)
            change = ledger.rest(log.state, lease, seen, batch, END_TURN, at(0), keep=keep)
            return None if change is None else log.apply(change)

        self.same(
            lambda: self.call(self.store.log.finish, lease, seen, batch, END_TURN, keep=keep), model
        )

    def _owned(self, lease: Lease) -> Log:
        if lease.session_id not in self.model:
            raise ledger.LeaseLost()
        return self.model[lease.session_id]

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        self.call(self.store.log.release, lease)
        if log := self.model.get(lease.session_id):
            log.state = ledger.give_back(log.state, lease)

    @rule(session_id=sessions)
    def archive(self, session_id: str) -> None:
        def model() -> Any:
            log = self._log(session_id)
            log.apply(ledger.close(log.state, at(1)))
            return log.state

        self.same(lambda: self.call(self.store.sessions.archive, TENANT, session_id).state, model)

    @rule(session_id=consumes(sessions))
    def delete(self, session_id: str) -> None:
        def model() -> None:
            ledger.leave(self._log(session_id).state)
            del self.model[session_id]

        self.same(lambda: self.call(self.store.sessions.delete, TENANT, session_id), model)

    @rule()
    def reopen(self) -> None:
        self.opened.__exit__(None, None, None)
        self.open()
        self.reopened()

    def reopened(self) -> None:
        """No node outlives the process."""
        self.living.clear()

    @rule(session_id=sessions, after=SEQS, limit=st.integers(1, 80))
    def read(self, session_id: str, after: int, limit: int) -> None:
        found = self.call(self.store.log.read, session_id, after, limit)
        log = self.model.get(session_id)
        assert timeless(found) == timeless(log.entries[after : after + limit] if log else [])

    @rule(
        session_id=sessions,
        query=st.builds(
            EventQuery,
            types=st.sampled_from([(), ("user.message",), ("agent.message", "user.interrupt")]),
            after=SEQS,
            before=st.none() | SEQS,
            order=st.sampled_from(["asc", "desc"]),
            as_of=st.none() | SEQS,
            limit=st.integers(1, 80),
        ),
    )
    def page(self, session_id: str, query: EventQuery) -> None:
        found = self.call(self.store.log.page, session_id, query)
        log = self.model.get(session_id)
        assert timeless(found) == timeless(log.page(query) if log else [])

    @invariant()
    def stands_where_the_model_stands(self) -> None:
        for session_id, log in self.model.items():
            state = self.call(self.store.sessions.find, session_id).state
            assert timeless(state) == timeless(log.state)
            waiting = self.call(self.store.log.inputs, session_id)
            assert timeless(waiting) == timeless([log.waiting[seq] for seq in sorted(log.waiting)])


TestStore = Machine.TestCase
TestStore.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class LongWalks(Machine):
    pass


TestStoreAtLength = pytest.mark.chaos(pytest.mark.timeout(1200)(LongWalks.TestCase))
TestStoreAtLength.settings = settings(TestStore.settings, max_examples=400, stateful_step_count=60)
