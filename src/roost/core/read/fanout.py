"""READ for many: however many follow a session, its log is read once for all of them.

One task waits for all sessions that anybody follows. A follower costs an entry in a set, a session
that is followed one in a dict: nothing wakes while nothing happens. A new follower first reads by
itself what it missed, at its own speed, and then joins the others where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Literal, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from roost.core.read.follow import Merge
from roost.core.read.large_events import LargeEvents
from roost.core.read.outcome import Outcome, is_rest, outcome_of
from roost.core.snapshots.restore import RestoreProgress
from roost.core.workspaces.local import SyncPhase, topic
from roost.core.workspaces.local import SyncStatus as Files
from roost.domain.events import WITHDRAWABLE, Entry, Preview
from roost.domain.session import Session, Status
from roost.errors import NotFound, RoostError
from roost.ports.log import Log, is_full
from roost.ports.nodes import Nodes
from roost.ports.notifier import Notifier, Subscriptions
from roost.ports.sessions import Sessions

AgentStatus = Literal["asleep", "waking", "running", "idle"]

_log = logging.getLogger(__name__)
_PAGE: Final = 500
_PAGE_BYTES: Final = 256 * 1024
_BREATHE: Final = 1.0  # seconds before a log that could not be read is read again
_LOOK_AGAIN: Final = 300.0  # seconds; what a lost notification was about is found this late
_LINGER: Final = 30.0  # seconds; a page that is loaded again sees the text it was in the middle of
_FILES: Final = topic("")
_RESTORES: Final = ("restore_started", "restoring", "restored", "restore_failed")
_PREVIEWED: Final = frozenset({"agent.message", "agent.thinking"})


class Follower(Protocol):
    """Somebody who is shown a session. None of these may wait, but for `drained`."""

    seq: int
    """How far it has been shown the log; it moves this on itself."""

    def entry(self, entry: Entry, outcome: Outcome | None) -> None:
        """An entry, which it may have had; with what the work came to, if it ends there."""
        ...

    def preview(self, preview: Preview) -> None:
        """Text of an entry to come; empty when it begins."""
        ...

    def agent(self, status: AgentStatus, cause: Entry | None) -> None:
        """What the session's agent does now, and the entry that says so, if one does."""
        ...

    def files(self, phase: SyncPhase, progress: RestoreProgress | None) -> None:
        """What becomes of the session's files."""
        ...

    def gone(self) -> None:
        """The session was deleted."""
        ...

    async def drained(self) -> None:
        """Returns when it can be shown more. Called while it catches up."""
        ...


class Channel:
    """A session that is followed."""

    __slots__ = (
        "again",
        "agent",
        "empty_since",
        "files",
        "followers",
        "merge",
        "reading",
        "seq",
        "stream",
        "told",
    )

    def __init__(self, seq: int, agent: AgentStatus) -> None:
        self.seq = seq
        self.agent: AgentStatus = agent
        self.files = Files()
        self.followers: set[Follower] = set()
        self.merge: Merge | None = None  # made when there is something to merge
        self.stream: tuple[Preview, list[str]] | None = None
        self.reading = False
        self.again = False
        self.told = False
        self.empty_since = 0.0

    def add(self, preview: Preview) -> None:
        """A preview, to be shown in its place."""
        self.merge = self.merge or Merge(_PREVIEWED)
        self.merge.add([preview])

    def in_order(self, entries: Sequence[Entry]) -> Iterator[Entry | Preview]:
        """These entries, and the previews that belong between them."""
        return iter(entries) if self.merge is None else self.merge.in_order(entries, self.seq)

    def show_entry(self, entry: Entry, outcome: Outcome | None) -> None:
        """Show an entry to every follower that has not been shown it."""
        self.seq = entry.seq
        if self.stream is not None and entry.id == self.stream[0].event_id:
            self.stream = None
        self.move(_agent_after(self.agent, entry), entry)
        for follower in list(self.followers):
            follower.entry(entry, outcome)

    def show_preview(self, preview: Preview) -> None:
        """To everybody, and remember it for those who come in the middle."""
        if not preview.text:
            self.stream = preview, []
        elif self.stream is not None:
            self.stream[1].append(preview.text)
        for follower in list(self.followers):
            follower.preview(preview)

    def move(self, agent: AgentStatus, cause: Entry | None = None) -> None:
        """Tell everybody, if it is new."""
        if agent == self.agent:
            return
        self.agent = agent
        for follower in list(self.followers):
            follower.agent(agent, cause)

    def show_files(self, files: Files) -> None:
        """Tell everybody, if it is new. That a restore has begun is said even if it went on since."""
        if (files.phase, files.progress) == (self.files.phase, self.files.progress):
            return
        before, self.files = self.files.phase, files
        unsaid = files.phase in _RESTORES and before not in ("restore_started", "restoring")
        for follower in list(self.followers):
            if unsaid and files.phase != "restore_started":
                follower.files("restore_started", None)
            follower.files(files.phase, files.progress)

    def welcome(self, follower: Follower) -> None:
        """Bring a follower that has read the log to where the others are."""
        self.followers.add(follower)
        follower.agent(self.agent, None)
        if self.stream is not None:
            begun, texts = self.stream
            follower.preview(begun)
            if texts:
                text = "".join(texts)
                self.stream = begun, [text]
                follower.preview(Preview(begun.event_id, begun.type, text, begun.after))


def _agent_after(agent: AgentStatus, entry: Entry) -> AgentStatus:
    match entry.type:
        case "session.status_running":
            return "waking" if agent in ("asleep", "waking") else "running"
        case "session.status_idle":
            return "asleep" if agent == "waking" else "idle"  # it rests before an agent was up
        case "session.status_terminated":
            return "asleep"
        case type:
            taken_up = type in WITHDRAWABLE and not (entry.queued or entry.withdrawn)
            at_work = taken_up or type.startswith(("agent.", "span."))
            return "running" if agent == "waking" and at_work else agent


class Fanout:
    """Shows sessions to their followers."""

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        nodes: Nodes,
        files_of: Callable[[str], Files | None],
    ) -> None:
        self._nodes = nodes
        self._files_of = files_of
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._large = LargeEvents()
        self._channels: dict[str, Channel] = {}
        self._empty: dict[str, Channel] = {}
        self._subscriptions: Subscriptions
        self._tasks: TaskGroup

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Show what happens, for ever."""
        with self._notifier.subscribe_many() as self._subscriptions:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._look_at_all)
                task_status.started()
                while True:
                    await self._subscriptions.wait(_LINGER)
                    self._pass_on()
                    self._close_empty()

    def awake(self) -> Iterator[tuple[str, Channel]]:
        """The sessions that are followed and whose agents are up."""
        for session_id, channel in self._channels.items():
            if channel.followers and channel.agent in ("running", "idle"):
                yield session_id, channel

    def committed(self, session_id: str, entries: Sequence[Entry]) -> None:
        """Show right away what was just committed here, if that is what comes next.

        A shortcut: a notification comes all the same, and then the log is read.
        """
        channel = self._channels.get(session_id)
        if channel is None or channel.reading or not entries or any(map(is_rest, entries)):
            return
        if [entry.seq - channel.seq for entry in entries] != list(range(1, len(entries) + 1)):
            return
        self._pass_on_previews()  # those of these entries were published before
        channel.told = True
        for shown in channel.in_order(entries):
            if isinstance(shown, Preview):
                channel.show_preview(shown)
            else:
                channel.show_entry(shown, None)

    def files_of(self, session_id: str) -> Files:
        """What is going on with a session's files: nothing, unless it is said here."""
        return self._files_of(session_id) or Files()

    async def agent_of(self, session: Session) -> AgentStatus:
        """What a session's agent does, as far as its row tells. A node that died has no agents."""
        state = session.state
        is_up = state.owner is not None and await self._nodes.lives(state.owner)
        if state.status in (Status.IDLE, Status.TERMINATED):
            return "idle" if is_up and state.status is Status.IDLE else "asleep"
        return "running" if is_up and state.turn is not None else "waking"

    async def catch_up(self, session_id: str, follower: Follower) -> None:
        """Show what the follower missed, at its own speed, until it is where the others are."""
        while True:
            full = await self._show_page(session_id, follower)
            await follower.drained()
            channel = self._channels.get(session_id)
            if not full and (channel is None or channel.seq <= follower.seq):
                return

    async def _show_page(self, session_id: str, follower: Follower) -> bool:
        """Show a follower the next page; gives whether more may follow."""
        async with self._page(session_id, follower.seq) as page:
            for entry in page:
                follower.entry(entry, await self._outcome(session_id, entry))
            return is_full(page, _PAGE, _PAGE_BYTES)

    def _page(self, session_id: str, after: int) -> AbstractAsyncContextManager[list[Entry]]:
        return self._large.page(partial(self._log.read, session_id, after, _PAGE, _PAGE_BYTES))

    def join(self, session_id: str, agent: AgentStatus, follower: Follower) -> None:
        """Show what happens from here on, until it leaves. The follower has caught up."""
        channel = self._channels.get(session_id)
        if channel is None:
            channel = self._channels[session_id] = Channel(follower.seq, agent)
            channel.files = self.files_of(session_id)
            self._subscriptions.add(session_id)
            self._subscriptions.add(topic(session_id))
        elif agent == "asleep" and channel.agent == "idle":
            channel.move(agent)  # its node died: nobody has said so
        self._empty.pop(session_id, None)
        channel.welcome(follower)
        self._stir(session_id, channel)  # whatever came since it caught up

    def leave(self, session_id: str, follower: Follower) -> None:
        """Show it nothing more. No harm if it never joined."""
        channel = self._channels.get(session_id)
        if channel is None or follower not in channel.followers:
            return
        channel.followers.discard(follower)
        if not channel.followers:
            channel.empty_since = anyio.current_time()
            self._empty[session_id] = channel

    def _pass_on_previews(self) -> None:
        seen = set()
        for session_id, preview in self._subscriptions.previews():
            if channel := self._channels.get(session_id):
                channel.add(preview)
                seen.add(session_id)
        for session_id in seen:
            channel = self._channels[session_id]
            if not channel.reading:
                self._show_previews(channel)

    def _pass_on(self) -> None:
        self._pass_on_previews()
        for notified in self._subscriptions.notified():
            session_id = notified.removeprefix(_FILES)
            channel = self._channels.get(session_id)
            if channel is not None and notified != session_id:
                channel.show_files(self.files_of(session_id))
            elif channel is not None:
                self._stir(session_id, channel)

    def _show_previews(self, channel: Channel) -> None:
        for shown in channel.in_order(()):
            if isinstance(shown, Preview):
                channel.show_preview(shown)

    def _stir(self, session_id: str, channel: Channel) -> None:
        channel.again = True
        if not channel.reading:
            channel.reading = True
            self._tasks.start_soon(self._read, session_id, channel)

    async def _read(self, session_id: str, channel: Channel) -> None:
        while channel.again:
            channel.again = False
            try:
                await self._read_page(session_id, channel)
            except RoostError as error:
                _log.warning(
                    "cannot follow: %s",
                    error.message,
                    extra={"action": "follow", "session": session_id},
                )
                await anyio.sleep(_BREATHE)
                channel.again = True
        channel.reading = False

    async def _read_page(self, session_id: str, channel: Channel) -> None:
        async with self._page(session_id, channel.seq) as entries:
            self._pass_on_previews()  # those of these entries were published before
            told, channel.told = channel.told, False
            for shown in channel.in_order(entries):
                if isinstance(shown, Preview):
                    channel.show_preview(shown)
                else:
                    channel.show_entry(shown, await self._outcome(session_id, shown))
            channel.again = channel.again or is_full(entries, _PAGE, _PAGE_BYTES)
            # Two notifications may have become one: the agent of a session that rests may be asleep by now.
            look = channel.agent == "idle" if entries else not told
        if look:
            await self._look(session_id, channel)

    async def _outcome(self, session_id: str, entry: Entry) -> Outcome | None:
        return await outcome_of(self._log, session_id, entry) if is_rest(entry) else None

    async def _look(self, session_id: str, channel: Channel) -> None:
        """What the log does not say: an agent went to sleep, or the session is gone."""
        try:
            session = await self._sessions.find(session_id)
            agent = await self.agent_of(session)
        except NotFound:
            for follower in list(channel.followers):
                follower.gone()
            return
        if session.state.head == channel.seq:
            channel.move(agent)
        else:  # entries that are not shown yet come first, and say it themselves
            channel.again = True

    def _close_empty(self) -> None:
        if not self._empty:
            return
        past = anyio.current_time() - _LINGER
        for session_id in [s for s, channel in self._empty.items() if channel.empty_since <= past]:
            del self._empty[session_id], self._channels[session_id]
            self._subscriptions.remove(session_id)
            self._subscriptions.remove(topic(session_id))

    async def _look_at_all(self) -> None:
        """Notifications may be lost: each session is looked at now and then, a few at a time."""
        while True:
            await anyio.sleep(_LOOK_AGAIN / (len(self._channels) + 1))
            for session_id, channel in list(self._channels.items()):
                if self._channels.get(session_id) is channel and not channel.reading:
                    self._stir(session_id, channel)
                await anyio.sleep(_LOOK_AGAIN / (len(self._channels) + 1))
