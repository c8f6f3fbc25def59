"""Following a log, and listing it."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.domain.events import PRIVATE, Entry
from roost.domain.ledger import Batch
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery, is_full
from roost.testing.stage import Stage, answer, message, numbers, types
from roost.testing.store_contract import StoreContract


def up_to(most: int, entries: list[Entry]) -> list[Entry]:
    """The first entries, with the one that brings them to so many bytes."""
    count = size = 0
    while count < len(entries) and size < most:
        size += len(entries[count].body)
        count += 1
    return entries[:count]


class Reading(StoreContract):
    """A reader sees what is committed, in order, from wherever it asks."""

    @pytest.fixture
    async def log(self, stage: Stage) -> list[Entry]:
        """A log of 203 entries, of which the first was taken up as the fourth."""
        lease = await stage.running()
        await stage.take_all(lease)
        for n in range(199):
            await stage.log.append(lease, Batch(drafts=[answer(str(n))]))
        entries = await stage.all(lease.session_id)
        assert numbers(entries) == list(range(1, 204))
        self.id = lease.session_id
        return entries

    async def test_a_reader_goes_on_after_any_seq(self, stage: Stage, log: list[Entry]) -> None:
        for after in (0, 1, 62, 63, 64, 65, 127, 128, 129, 202, 203, 204, 999):
            for limit in (1, 2, 63, 64, 65, 1000):
                read = await stage.log.read(self.id, after, limit)
                assert read == log[after : after + limit], (after, limit)

    async def test_a_page_ends_with_the_entry_that_makes_it_large_enough(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        for most in (1, 60, 61, 1000, 5000, 10**9):
            for limit in (1, 7, 1000):
                read = await stage.log.read(self.id, 3, limit, most)
                assert read == up_to(most, log[3 : 3 + limit]), (most, limit)
                query = EventQuery(after=3, limit=limit, most_bytes=most)
                assert await stage.log.page(self.id, query) == read
                query = EventQuery(before=200, limit=limit, most_bytes=most, order="desc")
                back = up_to(most, log[198:0:-1][:limit])
                assert await stage.log.page(self.id, query) == back
                assert is_full(back, limit, most) == (most < 10**9 or limit < 1000)

    async def test_pages_bounded_by_bytes_put_together_are_the_whole_log(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        seen: list[Entry] = []
        while page := await stage.log.read(self.id, len(seen), 50, 700):
            assert len(page) < 50
            seen += page
        assert seen == log

    async def test_nothing_is_read_of_a_session_that_is_not_there(self, stage: Stage) -> None:
        assert await stage.log.read("sesn_nowhere", 0, 10) == []
        assert await stage.log.inputs("sesn_nowhere") == []
        assert await stage.log.page("sesn_nowhere", EventQuery()) == []

    async def test_a_listing_shows_an_event_once_where_it_was_taken_up(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        assert log[0].id == log[3].id
        assert await stage.log.page(self.id, EventQuery()) == log[1:]
        assert await stage.log.page(self.id, EventQuery(order="desc")) == log[:0:-1]

    async def test_a_listing_leaves_out_what_no_client_is_shown(self, stage: Stage) -> None:
        lease = await stage.running()
        drafts = [new_draft(type) for type in (*sorted(PRIVATE), "agent.thinking")]
        *private, shown = await stage.log.append(lease, Batch(drafts=drafts))
        assert (await stage.all(lease.session_id))[-len(drafts) :] == [*private, shown]
        for query in (EventQuery(), EventQuery(types=[*PRIVATE, "agent.thinking"])):
            listed = await stage.log.page(lease.session_id, query)
            assert PRIVATE.isdisjoint(types(listed))
            assert listed[-1] == shown

    async def test_a_listing_shows_an_event_that_still_waits(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        assert types(await stage.log.page(session_id, EventQuery()))[0] == "user.message"

    async def test_pages_put_together_are_the_whole_listing(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        for limit in (1, 7, 64, 100):
            forwards: list[Entry] = []
            after = 0
            while page := await stage.log.page(self.id, EventQuery(after=after, limit=limit)):
                assert len(page) <= limit
                forwards += page
                after = page[-1].seq
            assert forwards == log[1:]
            backwards: list[Entry] = []
            before = None
            while page := await stage.log.page(
                self.id, EventQuery(before=before, limit=limit, order="desc")
            ):
                assert len(page) <= limit
                backwards += page
                before = page[-1].seq
            assert backwards == log[:0:-1]

    async def test_a_full_page_is_full_although_entries_are_hidden(self, stage: Stage) -> None:
        lease = await stage.running(*(message(str(n)) for n in range(50)))
        await stage.take_all(lease)
        page = await stage.log.page(lease.session_id, EventQuery(limit=20))
        assert numbers(page) == list(range(51, 71))

    async def test_a_listing_of_some_types_finds_them_all(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        wanted = ["user.message", "session.status_running"]
        query = EventQuery(types=wanted, limit=3)
        assert numbers(await stage.log.page(self.id, query)) == [2, 4]
        rare = EventQuery(types=["user.message"], order="desc", limit=1)
        assert numbers(await stage.log.page(self.id, rare)) == [4]
        after = EventQuery(types=["agent.message"], after=100, limit=5)
        assert numbers(await stage.log.page(self.id, after)) == [101, 102, 103, 104, 105]
        assert await stage.log.page(self.id, EventQuery(types=["user.interrupt"])) == []

    async def test_a_listing_between_two_seqs_has_neither(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        between = EventQuery(after=60, before=70)
        assert await stage.log.page(self.id, between) == log[60:69]
        nothing = EventQuery(after=60, before=61)
        assert await stage.log.page(self.id, nothing) == []

    async def test_a_listing_of_a_span_of_time_has_both_its_ends(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        since, until = log[80].at, log[150].at
        within = [entry for entry in log if since <= entry.at <= until]
        span = EventQuery(since=since, until=until)
        assert await stage.log.page(self.id, span) == within
        back = EventQuery(since=since, until=until, order="desc")
        assert await stage.log.page(self.id, back) == within[::-1]
        assert await stage.log.page(self.id, EventQuery(since=log[-1].at + 1)) == []
        assert await stage.log.page(self.id, EventQuery(until=log[0].at - 1)) == []

    async def test_a_picture_of_one_moment_does_not_change(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        moment = EventQuery(order="desc", as_of=3)
        before = await stage.log.page(session_id, moment)
        assert numbers(before) == [3, 2, 1]
        [lease] = await stage.claim()
        await stage.take_all(lease)
        assert await stage.log.page(session_id, moment) == before
        now = EventQuery(order="desc", as_of=4)
        assert numbers(await stage.log.page(session_id, now)) == [4, 3, 2]

    async def test_time_never_runs_backwards_along_a_log(
        self, stage: Stage, log: list[Entry]
    ) -> None:
        moments = [entry.at for entry in log]
        assert moments == sorted(moments)
        session = await stage.look(self.id)
        assert session.created_at <= moments[0]
        assert session.updated_at == moments[-1]
        assert session.read_at >= session.updated_at

    async def test_readers_see_only_whole_changes(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        done = anyio.Event()
        seen: set[int] = set()

        async def watch() -> None:
            while not done.is_set():
                seen.add(len(await stage.log.read(lease.session_id, 4, 1_000)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(watch)
            for _ in range(50):
                await stage.log.append(lease, Batch(drafts=[answer() for _ in range(7)]))
            done.set()
        assert {count % 7 for count in seen} == {0}
