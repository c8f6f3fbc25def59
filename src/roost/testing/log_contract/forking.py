"""A log that goes back: in a session that begins with a part of it, or in the same one."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import pytest
from msgspec.structs import replace

from roost.domain.events import Entry
from roost.domain.ledger import Batch
from roost.domain.rewinds import Rewind
from roost.domain.session import Session, Status
from roost.errors import (
    Conflict,
    IdempotencyMismatch,
    NotFound,
    QuotaExceeded,
    SessionBusy,
    SessionClosed,
)
from roost.ids import mint
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery, Receipt
from roost.ports.sessions import Cutting, Planting, Rewinding
from roost.testing.stage import TENANT, Stage, answer, message, numbers, spec, types
from roost.testing.store_contract import StoreContract


class Forking(StoreContract):
    """What forks and rewinds rely on."""

    async def fork(self, stage: Stage, cutting: Cutting, **more: object) -> Session:
        made = spec(forked_from={"session_id": cutting.source, "event_id": "sevt_1"})
        said = [new_draft("roost.forked", session_id=cutting.source)]
        return await stage.store.sessions.fork(
            TENANT,
            mint("sesn"),
            made,
            cutting,
            said,
            **more,  # type: ignore[arg-type]
        )

    async def test_a_fork_has_the_entries_of_its_part_and_goes_on_after_them(
        self, stage: Stage
    ) -> None:
        source = await stage.idle()
        before = await stage.all(source)
        fork = await self.fork(stage, Cutting(source, [(1, len(before))], rests=True))
        entries = await stage.all(fork.id)
        assert numbers(entries) == list(range(1, len(entries) + 1))
        shown = [entry for entry in before if not entry.queued]
        assert [(e.id, e.type, e.body, e.at) for e in entries[:-1]] == [
            (e.id, e.type, e.body, e.at) for e in shown
        ]
        assert entries[-1].type == "roost.forked"
        assert fork.state.head == len(entries)
        assert (fork.state.status, fork.state.generation) == (Status.IDLE, 1)
        assert fork.state.thread_id == (await stage.state(source)).thread_id
        found = await stage.look(fork.id)
        assert replace(found, read_at=0) == replace(fork, read_at=0)
        said = await stage.say(fork.id, "go on")
        assert said.woke
        assert said.entries[0].seq == len(entries) + 1
        assert await stage.all(source) == before

    async def test_what_waited_in_the_queue_is_not_in_a_fork_which_says_that_it_rests(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        await stage.say(lease.session_id, "and then?")
        written = await stage.log.append(lease, Batch(drafts=[answer("first")]))
        await stage.take_all(lease)
        last = written[-1].seq
        fork = await self.fork(stage, Cutting(lease.session_id, [(1, last)], rests=False))
        entries = await stage.all(fork.id)
        assert types(entries)[-5:] == [
            "agent.message",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
            "roost.forked",
        ]
        assert types(entries).count("user.message") == 1
        assert await stage.log.inputs(fork.id) == []
        assert fork.state.queued == 0

    async def test_several_stretches_make_one_log(self, stage: Stage) -> None:
        source = await stage.idle()
        before = await stage.all(source)
        shown = [entry for entry in before if not entry.queued]
        parts = [(shown[0].seq, shown[0].seq), (shown[2].seq, shown[-1].seq)]
        fork = await self.fork(stage, Cutting(source, parts, rests=True))
        copied = (await stage.all(fork.id))[:-1]
        assert [entry.id for entry in copied] == [shown[0].id, *(e.id for e in shown[2:])]
        assert numbers(copied) == list(range(1, len(copied) + 1))

    async def test_a_fork_is_made_once_under_a_receipt_and_within_the_quota(
        self, stage: Stage
    ) -> None:
        source = await stage.idle()
        cutting = Cutting(source, [(1, (await stage.state(source)).head)], rests=True)
        once = await self.fork(stage, cutting, receipt=Receipt("f:1", "a"))
        again = await self.fork(stage, cutting, receipt=Receipt("f:1", "a"))
        assert again.id == once.id
        with pytest.raises(IdempotencyMismatch):
            await self.fork(stage, cutting, receipt=Receipt("f:1", "b"))
        with pytest.raises(QuotaExceeded):
            await self.fork(stage, cutting, max_sessions=2)
        with pytest.raises(NotFound):
            await self.fork(stage, replace(cutting, source=await stage.session(tenant="other")))

    async def test_a_log_from_elsewhere_is_a_sessions_own_from_then_on(self, stage: Stage) -> None:
        drafts = [message("one"), answer("two"), *(message(f"{n}") for n in range(1200))]
        entries = [Entry(n, d.id, d.type, d.body, n) for n, d in enumerate(drafts, 1)]
        plant = stage.store.sessions.plant
        session = await plant(
            TENANT,
            mint("sesn"),
            spec(),
            Planting("sthr_1", entries),
            [new_draft("roost.imported")],
            max_sessions=1,
        )
        log = await stage.all(session.id)
        assert log[:1202] == entries
        assert types(log)[1202:] == [
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
            "roost.imported",
        ]
        assert (session.state.thread_id, session.state.generation) == ("sthr_1", 1)
        assert (await stage.say(session.id, "go on")).woke
        with pytest.raises(QuotaExceeded):
            await plant(TENANT, mint("sesn"), spec(), Planting("", []), [], max_sessions=1)
        assert await stage.all(session.id) != log

    def rewinding(self, session: Session, to: int, name: str | None = None) -> Rewinding:
        after = replace(session.spec, sdk_session_id=name)
        said = new_draft("roost.rewound", to={"seq": to})
        return Rewinding(session.state.head, to, 7, after, said)

    async def test_a_rewind_is_an_entry_and_listings_can_leave_out_what_it_hides(
        self, stage: Stage
    ) -> None:
        source = await stage.idle()
        first = (await stage.state(source)).head
        await stage.say(source, "to be forgotten")
        [lease] = await stage.claim()
        await stage.take_all(lease)
        await stage.finish(lease)
        session = await stage.look(source)
        after = await stage.store.sessions.rewind(
            TENANT, source, self.rewinding(session, first, "new name")
        )
        at = session.state.head + 1
        assert after == replace(await stage.look(source), read_at=after.read_at)
        assert after.state.rewinds == (Rewind(at, first, 7, None),)
        assert (after.state.head, after.state.turned) == (at, 0)
        assert after.spec.sdk_session_id == "new name"
        assert (await stage.all(source))[-1].type == "roost.rewound"
        hidden = after.state.rewound
        shown = await stage.log.page(source, EventQuery(hidden=hidden))
        backwards = await stage.log.page(source, EventQuery(hidden=hidden, order="desc", limit=2))
        assert hidden == [(first + 1, at - 1)]
        assert numbers(shown)[-2:] == [first, at]
        assert numbers(backwards) == [at, first]

    async def test_a_session_that_works_or_has_moved_on_is_not_rewound(self, stage: Stage) -> None:
        lease = await stage.running()
        rewind = stage.store.sessions.rewind
        session = await stage.look(lease.session_id)
        with pytest.raises(SessionBusy):
            await rewind(TENANT, session.id, self.rewinding(session, 1))
        await stage.take_all(lease)
        await stage.finish(lease)
        with pytest.raises(Conflict):
            await rewind(TENANT, session.id, self.rewinding(session, 1))
        waiting = await stage.look(await stage.asking("sevt_1"))
        with pytest.raises(SessionBusy):
            await rewind(TENANT, waiting.id, self.rewinding(waiting, 1))
        await stage.store.sessions.archive(TENANT, session.id)
        ended = await stage.look(session.id)
        with pytest.raises(SessionClosed):
            await rewind(TENANT, session.id, self.rewinding(ended, 1))
        with pytest.raises(NotFound):
            await rewind("somebody else", session.id, self.rewinding(ended, 1))

    async def test_an_event_is_found_where_the_agent_got_it(self, stage: Stage) -> None:
        source = await stage.idle()
        entries = await stage.all(source)
        taken = [entry for entry in entries if entry.type == "user.message"]
        assert len(taken) == 2
        assert await stage.log.seq_of(source, taken[0].id) == taken[1].seq
        assert await stage.log.seq_of(source, "sevt_none") is None
        assert await stage.log.seq_of(await stage.session(), taken[0].id) is None

    async def test_a_turn_that_is_over_leaves_its_place(self, stage: Stage) -> None:
        source = await stage.idle()
        state = await stage.state(source)
        assert state.turned == state.head
        await stage.say(source)
        [lease] = await stage.claim()
        assert (await stage.state(source)).turned == state.head
        await stage.take_all(lease)
        assert (await stage.state(source)).turned == 0
        asking = await stage.asking("sevt_1")
        assert (await stage.state(asking)).turned == 0
