"""One WebSocket: what its client sends goes to the log, in order; what its session does comes out.

Nothing is kept here that is not in the log or in the client's hands: a socket that is cut at any
moment is opened again and goes on.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.types import Receive

from roost.api.framework.deps import Deps
from roost.api.resources.session_events import drafts_of, receipts_of
from roost.core.files.attachments import Attachments
from roost.core.read.fanout import AgentStatus, Fanout
from roost.core.read.large_events import EventPages
from roost.core.read.outcome import Outcome
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.snapshots.restore import RestoreProgress
from roost.core.workspaces.local import Phase
from roost.core.write.intake import Intake
from roost.domain.events import Entry, Preview
from roost.domain.session import Session
from roost.errors import (
    AlreadyAnswered,
    AlreadyStarted,
    Forbidden,
    InvalidRequest,
    NotStarted,
    RoostError,
    WrongAnswer,
    WrongInput,
)
from roost.gateway import client_messages, server_messages
from roost.gateway.admission import Admission
from roost.gateway.client_messages import (
    AskUserAnswer,
    Close,
    InputMessage,
    PermissionResponse,
    Start,
)
from roost.gateway.connection import ClientConnection
from roost.gateway.server_messages import EntryEncoder
from roost.gateway.task_updates import TaskUpdates
from roost.ports.log import EventQuery

NORMAL, UNSUPPORTED, POLICY, FAILED = 1000, 1003, 1008, 1011
RESTART, RESUME, LOGGED_OUT, DELETED = 1012, 1013, 4401, 4404

_MOST_BAD: Final = 20  # in a row: whoever sends more does not read what we answer
_MOST_ASKED: Final = 200
_VOID: Final = ("session.status_idle", "session.status_rescheduled", "session.status_terminated")
_NEEDED: Final[dict[type, str]] = {
    PermissionResponse: "ask_user_answer",
    AskUserAnswer: "permission_response",
}
"""For each kind of answer, what was needed if it was the wrong one."""
_log = logging.getLogger(__name__)


class Socket:
    """A client on the line. Follows its session, as `core.read.fanout.Follower`."""

    __slots__ = (
        "_agent",
        "_asked",
        "_bad",
        "_deps",
        "_encoder",
        "_fanout",
        "_head",
        "_most_unread",
        "_refusal",
        "_stream",
        "_task",
        "_task_updates",
        "by",
        "connection",
        "seq",
        "session_id",
    )

    def __init__(
        self,
        connection: ClientConnection,
        by: Admission,
        deps: Deps,
        fanout: Fanout,
        task_updates: TaskUpdates,
        encoder: EntryEncoder,
    ) -> None:
        self.connection = connection
        self.by = by
        self.seq = 0
        self.session_id: str | None = None
        self._deps = deps
        self._fanout = fanout
        self._task_updates = task_updates
        self._encoder = encoder
        self._most_unread = deps.settings.max_unread_bytes
        self._head = 0
        self._task: str | None = None
        self._refusal: str | None = None
        self._asked: frozenset[str] = frozenset()
        self._agent: AgentStatus | None = None
        self._stream: str | None = None
        self._bad = 0

    # What it is shown

    def entry(self, entry: Entry, outcome: Outcome | None) -> None:
        """An entry, unless it has had it."""
        if entry.seq <= self.seq:
            return
        self.seq = entry.seq
        said = self._encoder.of(entry, outcome)
        frames = said.rest
        asks = said.request and not (said.errand and self._task)
        if asks and (entry.seq > self._head or entry.id in self._asked):
            frames = said.request + frames
        if self._stream is not None:
            frames = self._stream_ends(entry) + frames
        self.send(frames)

    def _stream_ends(self, entry: Entry) -> bytes:
        if entry.id != self._stream and entry.type not in _VOID:
            return b""
        message_id, self._stream = str(self._stream), None
        return server_messages.stream_end(message_id, entry.seq if entry.id == message_id else None)

    def preview(self, preview: Preview) -> None:
        """Text that is being written, if its beginning was shown here."""
        frames = b""
        if not preview.text:
            if self._stream is not None and self._stream != preview.event_id:
                frames = server_messages.stream_end(self._stream, None)
            self._stream = preview.event_id
        if self._stream == preview.event_id:
            self.send(frames + server_messages.stream_text(preview))

    def agent(self, status: AgentStatus, cause: Entry | None) -> None:
        """What the agent does, if it is news."""
        if status != self._agent:
            before, self._agent = self._agent, status
            self.send(server_messages.agent_status(before, status, cause))

    def files(self, phase: Phase, progress: RestoreProgress | None) -> None:
        """What becomes of its files."""
        self.send(server_messages.session_status(phase, progress))

    def gone(self) -> None:
        """There is nothing to follow any more."""
        self.connection.hang_up(DELETED, "the session was deleted")

    async def drained(self) -> None:
        """Wait for a client that reads slowly what it has missed."""
        await self.connection.drained()

    def send(self, frames: bytes) -> None:
        """To the client; one that leaves too much unread is told to come again."""
        if self.connection.write(frames) > self._most_unread:
            self.connection.hang_up(RESUME, f"too slow; resume with after={self.seq}")

    # What it sends

    async def serve(self, receive: Receive) -> None:
        """Until the client hangs up, or is hung up on."""
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                frame = message.get("text")
                if frame is None:
                    self.connection.hang_up(UNSUPPORTED, "send text, not binary")
                elif await self._heard(frame):
                    continue
                return
        finally:
            if self.session_id is not None:
                self._fanout.leave(self.session_id, self)
            if self._task is not None:
                self._task_updates.leave(self._task, self)

    async def _heard(self, frame: str) -> bool:
        """Whether to go on."""
        try:
            word = client_messages.parse(frame)
        except InvalidRequest as error:
            return self._garbled(error)
        self._bad = 0
        if isinstance(word, Close):
            self.connection.hang_up(NORMAL, "you said close")
            return False
        try:
            await self._deps.rates.count(self.by.key, "writes", {})
            await (self._start(word) if isinstance(word, Start) else self._take(word))
        except RoostError as error:
            self.send(server_messages.error_message(error, word.id))
        return True

    def _garbled(self, error: InvalidRequest) -> bool:
        """Whether to go on after a frame that is no message. One that is refused counts as a message."""
        self.send(server_messages.error_message(error))
        self._bad += 1
        if self._bad > _MOST_BAD:
            self.connection.hang_up(POLICY, "too many bad messages in a row")
        return self._bad <= _MOST_BAD

    async def _take(self, word: InputMessage) -> None:
        session_id = self.session_id
        if session_id is None:
            raise NotStarted()
        if self._refusal is not None:
            raise Forbidden(self._refusal)
        services = self._deps.services
        event = client_messages.event_of(word)
        drafts, receipts = drafts_of([event], "message"), receipts_of([event], None, b"")
        try:
            async with services[Attachments].kept(self.by.key, session_id, drafts, "message"):
                accepted = await services[Intake].accept(session_id, drafts, receipts)
        except WrongAnswer as wrong:
            needed = _NEEDED[type(word)]
            raise WrongAnswer(f"requestId: this waits for a {needed}", hint=wrong.hint) from None
        except WrongInput:
            raise  # it may well wait
        except InvalidRequest:
            if isinstance(word, PermissionResponse | AskUserAnswer):
                await self._check_answered(session_id, word.requestId)
            raise
        if not accepted.repeated:
            self._deps.meters.accepted.inc()
        [entry] = accepted.entries
        ack: dict[str, Any] = {"type": "ack", "id": word.id, "eventId": entry.id, "seq": entry.seq}
        self.send(server_messages.frame(ack | ({"repeated": True} if accepted.repeated else {})))

    async def _check_answered(self, session_id: str, request_id: str) -> None:
        for entry in await self._questions(session_id):
            if entry.id == request_id:
                raise AlreadyAnswered(f"{request_id} was answered already, or interrupted")

    # How it begins

    async def _start(self, word: Start) -> None:
        if self.session_id is not None:
            raise AlreadyStarted()
        self.send(server_messages.connection_status("connecting"))
        session = await self._session(word)
        self._head = session.state.head
        self._task = session.spec.task_id
        self._refusal = await self._refused(session)
        self.seq = self._begins_at(word)
        self._asked = frozenset(pending.event_id for pending in session.state.pending)
        agent = await self._fanout.agent_of(session)
        self._welcome(word, session, agent)
        for entry in reversed(await self._questions(session.id) if self._asked else []):
            asks = entry.id in self._asked and not (
                server_messages.is_server_tool(entry) and self._task
            )
            if asks and entry.seq <= self.seq:
                self.send(server_messages.request_again(entry))
        self.session_id = session.id
        await self._fanout.catch_up(session.id, self)
        self._fanout.join(session.id, agent, self)
        if self._task is not None:
            self._task_updates.follow(session.tenant, self._task, self)

    def _welcome(self, word: Start, session: Session, agent: AgentStatus) -> None:
        ack: dict[str, object] = {"type": "ack", "id": word.id, "sessionId": session.id}
        ack |= {"seq": self.seq, "head": self._head}
        if (self.by.session_id or word.sessionId) and (
            ignored := client_messages.ignored_in(word, session.spec)
        ):
            ack["ignored"] = ignored
        files = self._fanout.files_of(session.id)
        self._agent = agent
        self.send(
            server_messages.frame(ack)
            + server_messages.session_status(files.phase, files.progress)
            + server_messages.connection_status("connected")
            + server_messages.agent_status(None, self._agent, None)
        )

    def _begins_at(self, word: Start) -> int:
        after = self.by.after if word.after is None else word.after
        if after is not None and after > self._head:
            raise InvalidRequest(f"after: the session's log ends at {self._head}, before {after}")
        return self._head if after is None else after

    async def _session(self, word: Start) -> Session:
        """The session that is meant, fresh from the store, or a new one."""
        bound = self.by.session_id
        if bound is not None and word.sessionId not in (None, bound):
            raise Forbidden("sessionId: this socket was opened for another session")
        session_id = bound or word.sessionId
        lifecycle = self._deps.services[Lifecycle]
        if session_id is not None:
            return await self._deps.access.session(self.by.key, session_id, "see")
        body, receipt = client_messages.creation_of(word)
        return await lifecycle.create(self.by.key, body, (), receipt)

    async def _questions(self, session_id: str) -> list[Entry]:
        """What was asked, the newest first."""
        query = EventQuery(types=server_messages.ASKING, order="desc", limit=_MOST_ASKED)
        return await self._deps.services[EventPages].read(session_id, query)

    async def _refused(self, session: Session) -> str | None:
        """Why the client may only look on: more trust than its key has, or a workspace it may not use."""
        try:
            await self._deps.access.check(self.by.key, session, "tell")
        except Forbidden as forbidden:
            return forbidden.message
        return None
