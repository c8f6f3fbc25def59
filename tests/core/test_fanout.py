"""Followers of one session: the log is read once for all, and each sees every entry once, in order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import Node, message, node

from roost.core.read import fanout as module
from roost.core.read.fanout import AgentStatus, Fanout
from roost.core.read.follow import Follow
from roost.core.read.outcome import Outcome
from roost.domain.events import Entry, Preview
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Session
from roost.errors import Unavailable
from roost.ports.drafts import new_draft


class Watcher:
    """A follower that remembers."""

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        self.seen: list[Any] = []
        self.agents: list[AgentStatus] = []
        self.is_gone = False

    def entry(self, entry: Entry, outcome: Outcome | None) -> None:
        if entry.seq > self.seq:
            self.seq = entry.seq
            self.seen.append(entry.seq)

    def preview(self, preview: Preview) -> None:
        self.seen.append(preview.text)

    def agent(self, status: AgentStatus, cause: Entry | None) -> None:
        self.agents.append(status)

    def files(self, phase: Any, progress: Any) -> None:
        self.seen.append(phase)

    def gone(self) -> None:
        self.is_gone = True

    async def drained(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def until(self, seq: int) -> None:
        with anyio.fail_after(60):
            while self.seq < seq:  # noqa: ASYNC110 - what it waits for is a callback of its own
                await anyio.sleep(0.01)


class Flaky:
    """A log that cannot be read now and then."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.failures = 0
        self.reads = 0
        self.then: Callable[[], None] = lambda: None

    async def read(self, *asked: Any) -> Sequence[Entry]:
        self.reads += 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("the disk is away")
        found: Sequence[Entry] = await self._log.read(*asked)
        self.then()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@asynccontextmanager
async def following(data: Path) -> AsyncGenerator[tuple[Node, Fanout, Flaky], None]:
    async with node(data, working=False) as roost, anyio.create_task_group() as tasks:
        log = Flaky(roost.store.log)
        fanout = Fanout(
            log, roost.store.sessions, roost.notifier, roost.store.nodes, lambda _: None
        )  # type: ignore[arg-type]
        await tasks.start(fanout.run)
        yield roost, fanout, log
        tasks.cancel_scope.cancel()


async def has_looked(fanout: Fanout, session_id: str) -> None:
    """Whoever joins is shown what came meanwhile: returns when it was looked for."""
    while fanout._channels[session_id].reading:  # noqa: ASYNC110 - nobody is told of that
        await anyio.sleep(0.01)


async def test_who_comes_late_reads_what_was_missed_and_joins_the_others(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        first, late = Watcher(), Watcher()
        fanout.join(session.id, "asleep", first)
        for number in range(5):
            await roost.say(session, str(number))
        await first.until(7)
        await fanout.catch_up(session.id, late)
        fanout.join(session.id, "waking", late)
        await roost.say(session, "last")
        for watcher in (first, late):
            await watcher.until(8)
            assert watcher.seen == list(range(1, 9))


async def test_large_events_are_read_for_a_few_followers_at_a_time(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        large, small = await roost.session(), await roost.session()
        await roost.say(large, "x" * 2_000_000)
        await roost.say(small, "hello")
        waiting, quick = Watcher(), Watcher()
        places = fanout._large._reading
        for _ in range(places.value):
            await places.acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fanout.catch_up, large.id, waiting)
            with anyio.fail_after(60):
                while not places.statistics().tasks_waiting:  # noqa: ASYNC110 - nobody is told
                    await anyio.sleep(0.01)
            await fanout.catch_up(small.id, quick)
            assert quick.seen
            assert not waiting.seen
            places.release()
        assert waiting.seen == quick.seen


async def test_what_is_told_is_shown_at_once_and_not_again(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, log):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        reads = log.reads
        accepted = await roost.store.log.accept(session.id, [message("a")])
        fanout.committed(session.id, accepted.entries)
        assert watcher.seen == [1]
        assert log.reads == reads
        roost.notifier.notify(session.id)  # and what else was committed with it comes by the log
        await watcher.until(3)
        assert watcher.seen == [1, 2, 3]


@pytest.mark.parametrize("told", [[2], [1, 3], [3, 2, 1], []])
async def test_what_is_told_out_of_order_is_left_to_the_log(
    tmp_path: Path, told: list[int]
) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        await roost.store.log.accept(session.id, [message("a")])
        entries = {e.seq: e for e in await roost.store.log.read(session.id, 0, 10)}
        fanout.committed(session.id, [entries[seq] for seq in told])
        assert watcher.seen == []
        roost.notifier.notify(session.id)
        await watcher.until(3)
        assert watcher.seen == [1, 2, 3]


async def test_previews_are_shown_between_the_entries_they_belong_between(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        await roost.store.log.accept(session.id, [message("a")])
        entries = await roost.store.log.read(session.id, 0, 10)
        for text in ("", "x"):
            roost.notifier.publish(session.id, Preview("sevt_1", "agent.message", text, 1))
        fanout.committed(session.id, entries[:1])
        assert watcher.seen[:1] == [1]
        roost.notifier.notify(session.id)
        await watcher.until(3)
        assert watcher.seen == [1, "", "x", 2, 3]


async def test_a_log_that_cannot_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BREATHE", 0.01)
    async with following(tmp_path) as (roost, fanout, log):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        log.failures = 3
        await roost.say(session, "a")
        await watcher.until(3)
        assert watcher.seen == [1, 2, 3]


async def test_what_was_notified_of_in_vain_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN", 0.05)
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        await roost.store.log.accept(session.id, [message("a")])  # and nobody notifies
        await watcher.until(3)
        assert watcher.agents[-1] == "waking"


async def test_what_does_not_fit_in_one_page_follows_without_another_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        await roost.say(session, *"abcde")
        await watcher.until(7)
        assert watcher.seen == list(range(1, 8))


async def test_who_left_is_shown_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER", 0.05)
    async with following(tmp_path) as (roost, fanout, log):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        fanout.leave(session.id, watcher)
        fanout.leave(session.id, watcher)
        await anyio.sleep(0.3)
        reads = log.reads
        await roost.say(session, "a")
        await anyio.sleep(0.05)
        assert watcher.seen == []
        assert log.reads == reads  # nobody follows it, so nobody reads it


async def test_the_followers_of_a_deleted_session_are_told(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await has_looked(fanout, session.id)
        await roost.store.sessions.delete(session.tenant, session.id)
        roost.notifier.notify(session.id)
        with anyio.fail_after(60):
            while not watcher.is_gone:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_the_agent_of_a_node_that_died_is_asleep_and_wakes_with_the_next_message(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        log, session = roost.store.log, await roost.session(message("one"))
        await log.renew("node_gone", 60)
        [lease] = await log.claim("node_gone", 1)
        assert await fanout.agent_of(await roost.store.sessions.find(session.id)) == "waking"
        await log.append(lease, Batch(takes=await log.inputs(session.id), turn=TurnMark.BEGIN))
        at_work = await roost.store.sessions.find(session.id)
        assert await fanout.agent_of(at_work) == "running"
        await log.finish(lease, at_work.state.head, Batch(), {"type": "end_turn"}, keep=True)
        warm = await roost.store.sessions.find(session.id)
        assert await fanout.agent_of(warm) == "idle"
        before, after = Watcher(warm.state.head), Watcher(warm.state.head)
        fanout.join(session.id, "idle", before)
        await log.renew("node_gone", 0)  # as if it had been killed, and its lease ran out
        assert await fanout.agent_of(warm) == "asleep"
        assert await fanout.agent_of(at_work) == "waking"
        fanout.join(session.id, "asleep", after)
        assert (before.agents, after.agents) == (["idle", "asleep"], ["asleep"])
        await roost.say(session, "two")
        await after.until(warm.state.head + 2)
        assert after.agents[-1] == "waking"


async def test_a_session_that_is_stopped_before_its_agent_is_up_is_asleep(tmp_path: Path) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        session = await roost.session()
        watcher = Watcher()
        fanout.join(session.id, "asleep", watcher)
        await roost.say(session, "one")
        await watcher.until(3)
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        await watcher.until(9)
        assert watcher.agents == ["asleep", "waking", "asleep"]


class Hurried:
    """Sessions that come to rest, and whose agents go to sleep, just before they are looked at."""

    def __init__(self, roost: Node, lease: Lease) -> None:
        self._roost = roost
        self._lease = lease
        self.rests = False

    async def find(self, session_id: str) -> Session:
        if self.rests:
            self.rests = False
            await to_sleep(self._roost, self._lease)
        return await self._roost.store.sessions.find(session_id)


async def to_sleep(roost: Node, lease: Lease) -> None:
    head = (await roost.store.sessions.find(lease.session_id)).state.head
    assert await roost.store.log.finish(lease, head, Batch(), {"type": "end_turn"}, keep=True)
    await roost.store.log.release(lease)


async def at_work(roost: Node) -> Lease:
    log, session = roost.store.log, await roost.session(message("one"))
    await log.renew("node_1", 60)
    [lease] = await log.claim("node_1", 1)
    await log.append(lease, Batch(takes=await log.inputs(session.id), turn=TurnMark.BEGIN))
    return lease


async def watching(roost: Node, fanout: Fanout, lease: Lease) -> Watcher:
    watcher = Watcher()
    await fanout.catch_up(lease.session_id, watcher)
    fanout.join(lease.session_id, "running", watcher)
    await has_looked(fanout, lease.session_id)
    return watcher


async def test_an_agent_that_rests_and_sleeps_behind_one_notification_is_asleep(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        lease = await at_work(roost)
        watcher = await watching(roost, fanout, lease)
        await to_sleep(roost, lease)
        roost.notifier.notify(lease.session_id)
        await watcher.until((await roost.store.sessions.find(lease.session_id)).state.head)
        await has_looked(fanout, lease.session_id)
        assert watcher.agents == ["running", "idle", "asleep"]


async def test_what_an_agent_does_is_not_told_before_the_entries_that_lead_there(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (roost, fanout, _):
        lease = await at_work(roost)
        watcher = await watching(roost, fanout, lease)
        hurried = Hurried(roost, lease)
        fanout._sessions = hurried  # type: ignore[assignment]
        hurried.rests = True
        roost.notifier.notify(lease.session_id)
        with anyio.fail_after(60):
            while hurried.rests:  # noqa: ASYNC110 - nobody is told of that
                await anyio.sleep(0.01)
        await has_looked(fanout, lease.session_id)
        assert watcher.seen[-1] == (await roost.store.sessions.find(lease.session_id)).state.head
        assert watcher.agents == ["running", "idle", "asleep"]


async def answered(roost: Node, lease: Lease, log: Flaky, after: int) -> None:
    """An answer is in the log, and nobody has looked yet at what of it was shown before."""
    answer = new_draft("agent.message", content=[{"type": "text", "text": "x"}])
    await roost.store.log.append(lease, Batch(drafts=[answer]))

    def publish() -> None:
        log.then = lambda: None
        for text in ("", "x"):
            preview = Preview(answer.id, "agent.message", text, after)
            roost.notifier.publish(lease.session_id, preview)

    log.then = publish


async def test_a_preview_is_shown_before_its_entry_also_if_both_come_at_once(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (roost, fanout, log):
        lease = await at_work(roost)
        watcher = await watching(roost, fanout, lease)
        await answered(roost, lease, log, watcher.seq)
        roost.notifier.notify(lease.session_id)
        await watcher.until(watcher.seq + 1)
        assert watcher.seen[-3:] == ["", "x", watcher.seq]


async def test_one_reader_is_shown_a_preview_before_its_entry_also_if_both_come_at_once(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (roost, _, log):
        lease = await at_work(roost)
        head = (await roost.store.sessions.find(lease.session_id)).state.head
        await answered(roost, lease, log, head)
        store = roost.store
        follow = Follow(log, store.sessions, roost.notifier, store.marks, heartbeat=9, catch_up=9)  # type: ignore[arg-type]
        previews = frozenset({"agent.message"})
        async with aclosing(follow.tail(lease.session_id, head, previews=previews)) as tail:
            shown = [await anext(tail) for _ in range(3)]
        assert [one.text if isinstance(one, Preview) else one for one in shown[:2]] == ["", "x"]
        assert isinstance(shown[2], Entry)
