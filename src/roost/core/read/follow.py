"""READ: the log after a cursor, then whatever comes, with previews in their place."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial

from roost.core.read.large_events import LargeEvents
from roost.domain.events import PRIVATE, Entry, Micros, Preview
from roost.domain.session import Session, Status
from roost.errors import NotFound
from roost.ports.log import Log, is_full
from roost.ports.marks import Marks
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_PAGE = 500
_PAGE_BYTES = 128 * 1024  # of a page that a reader has not taken yet
_MOST_REMEMBERED = 10_000


class Pause(Enum):
    """What a follower is told when there is no entry to show."""

    QUIET = "quiet"
    """Nothing happened for a while: time for a sign of life."""
    GONE = "gone"
    """The session was deleted; nothing follows."""


Shown = Entry | Preview | Pause


class Follow:
    """Follows sessions for any number of readers."""

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        marks: Marks,
        *,
        heartbeat: float,
        catch_up: float,
        since: Micros = 0,
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._seen = _Seen()
        self._large = LargeEvents()
        self._marks = marks
        self._heartbeat = heartbeat
        self._catch_up = int(catch_up * 1_000_000)
        self._since = since

    async def start_of(self, session: Session) -> int:
        """After which seq a stream begins that was given no cursor: now, with one exception.

        Many clients send first and open the stream then; a quick turn would be over before they
        watch, and they would wait for ever. So a stream that is opened soon after an input begins
        just before that input, unless another such stream has shown it, or the session was read
        since and found at rest. Clients that open the stream first are not touched: they were shown
        their inputs. Streams with a cursor do not count: who has one never comes here, and a dashboard
        must not take a program's answer away. What was shown before this server began (`since`) is not
        known: a turn that ended then is not repeated.
        """
        state = session.state
        old = state.sent_at < self._since and state.status is Status.IDLE
        if old or not self._is_fresh(session):
            return state.head
        shown = self._seen.up_to(session.id)
        if state.sent > shown:
            shown = max(shown, await self._marks.up_to(session.id))
        return state.head if state.sent <= shown else max(state.first_input - 1, shown)

    async def looked(self, session: Session) -> None:
        """Somebody has read the session, and saw that it rests: its turn needs no showing again.

        So a program that sends, asks until the session is idle, and opens a stream for its next
        message does not get the turn before.
        """
        known = self._seen.up_to(session.id) >= session.state.head
        if session.state.status is Status.IDLE and self._is_fresh(session) and not known:
            self._seen.note(session.id, session.state.head)
            await self._marks.note(session.id, session.state.head)

    def _is_fresh(self, session: Session) -> bool:
        return session.read_at - session.state.sent_at <= self._catch_up

    async def tail(
        self,
        session_id: str,
        after: int,
        *,
        previews: frozenset[str] = frozenset(),
        counts: bool = False,
    ) -> AsyncGenerator[Shown, None]:
        """Every entry past `after`, for ever, in order; previews of the given event types between.

        Subscribes before it reads, so nothing falls between the two. `counts`: see `start_of`.
        """
        with self._notifier.subscribe(session_id, previews=bool(previews)) as subscription:
            merge = Merge(previews)
            behind = True
            while True:
                async with self._page(session_id, after if behind else None) as entries:
                    # The previews of these entries were published before them.
                    merge.add(subscription.previews())
                    for shown in merge.in_order(entries, after):
                        if isinstance(shown, Entry) and shown.type in PRIVATE:
                            continue
                        yield shown
                        if counts and isinstance(shown, Entry):
                            await self._note(session_id, shown)
                        del shown  # it may be large, and the next one may be long in coming
                    full = is_full(entries, _PAGE, _PAGE_BYTES)
                    empty = not entries
                    after = after if empty else entries[-1].seq
                    entries.clear()
                if empty and behind and await self._is_gone(session_id):
                    yield Pause.GONE
                    return
                behind = full or subscription.notified()
                if not behind:
                    # A notification may be lost: after a quiet while, look all the same.
                    if quiet := not await subscription.wait(self._heartbeat):
                        yield Pause.QUIET
                    behind = quiet or subscription.notified()

    @asynccontextmanager
    async def _page(self, session_id: str, after: int | None) -> AsyncGenerator[list[Entry], None]:
        """What follows, held for as long as the reader takes it; of what is large, by a few at a time."""
        if after is None:
            yield []
            return
        read = partial(self._log.read, session_id, after, _PAGE, _PAGE_BYTES)
        async with self._large.page(read) as entries:
            yield entries

    async def _note(self, session_id: str, entry: Entry) -> None:
        """It was shown. Other nodes are told of inputs, and of the end of a turn."""
        self._seen.note(session_id, entry.seq)
        if entry.type.startswith("user.") or entry.type == "session.status_idle":
            await self._marks.note(session_id, entry.seq)

    async def _is_gone(self, session_id: str) -> bool:
        try:
            await self._sessions.find(session_id)
        except NotFound:
            return True
        return False


class _Seen:
    """How far streams of this node have shown each session: a hint, which may be lost."""

    def __init__(self) -> None:
        self._up_to: OrderedDict[str, int] = OrderedDict()

    def note(self, session_id: str, seq: int) -> None:
        self._up_to[session_id] = max(seq, self.up_to(session_id))
        self._up_to.move_to_end(session_id)
        if len(self._up_to) > _MOST_REMEMBERED:
            self._up_to.popitem(last=False)

    def up_to(self, session_id: str) -> int:
        return self._up_to.get(session_id, 0)


class Merge:
    """Puts previews between the entries they belong between.

    A preview is shown only if its beginning was, and only until its event is: what a connection
    gets of an event's text is a prefix, then the event.
    """

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._waiting: deque[Preview] = deque()
        self._begun: str | None = None
        self._done: deque[str] = deque(maxlen=64)

    def add(self, previews: Iterable[Preview]) -> None:
        """Previews that were published since."""
        self._waiting.extend(p for p in previews if p.type in self._types)

    def in_order(self, entries: Sequence[Entry], after: int) -> Iterator[Entry | Preview]:
        """The entries that follow `after`, and every preview whose entries have been shown."""
        for entry in entries:
            yield from self._previews_until(after)
            if entry.type in self._types:
                self._done.append(entry.id)
            yield entry
            after = entry.seq
        yield from self._previews_until(after)

    def _previews_until(self, seq: int) -> Iterator[Preview]:
        while self._waiting and self._waiting[0].after <= seq:
            preview = self._waiting.popleft()
            if preview.event_id in self._done:
                continue
            if not preview.text:
                self._begun = preview.event_id
            if preview.event_id == self._begun:
                yield preview
