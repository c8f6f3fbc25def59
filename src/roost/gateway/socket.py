"""One WebSocket: what its client sends goes to the log, in order; what its session does comes out.

Nothing is kept here that is not in the log or in the client's hands: a socket that is cut at any
moment is opened again and goes on.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from starlette.types import Receive

from roost.api.framework.deps import Deps
from roost.api.resources.session_events import drafts_of, receipts_of
from roost.core.files.attachments import Attachments
from roost.core.read.fanout import AgentStatus, Fanout
from roost.core.read.large_events import EventPages
from roost.core.read.outcome import Outcome
from roost.core.sessions.harness_choice import HarnessChoice
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.snapshots.restore import RestoreProgress
from roost.core.workspaces.local import SyncPhase
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
    """One connected client. Follows its session, as `core.read.fanout.Follower`."""

    __slots__ = (
        "_agent",
        "_asked",
        "_bad",
        "_deps",
        "_encoder",
        "_fanout",
        "_harness",
        "_head",
        "_most_unread",
        "_refusal",
        "_stream",
        "_task",
        "_task_updates",
        "admission",
        "connection",
        "seq",
        "session_id",
    )

    def __init__(
        self,
        connection: ClientConnection,
        admission: Admission,
        deps: Deps,
        fanout: Fanout,
        task_updates: TaskUpdates,
        encoder: EntryEncoder,
    ) -> None:
        self.connection = connection
        self.admission = admission
        self.seq = 0
        self.session_id: str | None = None
        self._deps = deps
        self._fanout = fanout
        self._task_updates = task_updates
        self._encoder = encoder
        self._most_unread = deps.settings.max_unread_bytes
        self._head = 0
        self._task: str | None = None
        self._harness = ""
        self._refusal: str | None = None
        self._asked: frozenset[str] = frozenset()
        self._agent: AgentStatus | None = None
        self._stream: str | None = None
        self._bad = 0

    # What it is shown

    def entry(self, entry: Entry, outcome: Outcome | None) -> None:
        """Show an entry, unless the client has it already."""
        if entry.seq <= self.seq:
            return
        self.seq = entry.seq
        shown = self._encoder.of(entry, outcome)
        frames = shown.rest
        asks = shown.request and not (shown.for_server and self._task)
        if asks and (entry.seq > self._head or entry.id in self._asked):
            frames = shown.request + frames
        if self._stream is not None:
            frames = self._stream_ends(entry) + frames
        self.send(frames)

    def _stream_ends(self, entry: Entry) -> bytes:
        if entry.id != self._stream and entry.type not in _VOID:
            return b""
        message_id, self._stream = str(self._stream), None
        return server_messages.stream_end(message_id, entry.seq if entry.id == message_id else None)

    def preview(self, preview: Preview) -> None:
        """Show text that is being written, if its beginning was shown here."""
        frames = b""
        if not preview.text:
            if self._stream is not None and self._stream != preview.event_id:
                frames = server_messages.stream_end(self._stream, None)
            self._stream = preview.event_id
        if self._stream == preview.event_id:
            self.send(frames + server_messages.stream_text(preview))

    def agent(self, status: AgentStatus, cause: Entry | None) -> None:
        """Show what the agent does, if that has changed."""
        if status != self._agent:
            before, self._agent = self._agent, status
            self.send(server_messages.agent_status(before, status, cause))

    def files(self, phase: SyncPhase, progress: RestoreProgress | None) -> None:
        """Show what happens to the session's files."""
        self.send(server_messages.session_status(phase, progress))

    def gone(self) -> None:
        """Close the connection: the session was deleted."""
        self.connection.hang_up(DELETED, "the session was deleted")

    async def drained(self) -> None:
        """Wait until the client has read most of what it was sent."""
        await self.connection.drained()

    def send(self, frames: bytes) -> None:
        """Send frames; a client that leaves too much unread is told to connect again."""
        if self.connection.write(frames) > self._most_unread:
            self.connection.hang_up(RESUME, f"too slow; resume with after={self.seq}")

    # What it sends

    async def serve(self, receive: Receive) -> None:
        """Take messages until one side ends the connection."""
        try:
            while (received := await receive())["type"] != "websocket.disconnect":
                frame = received.get("text")
                if frame is None:
                    self.connection.hang_up(UNSUPPORTED, "send text, not binary")
                elif await self._received(frame):
                    continue
                return
        finally:
            if self.session_id is not None:
                self._fanout.leave(self.session_id, self)
            if self._task is not None:
                self._task_updates.leave(self._task, self)

    async def _received(self, frame: str) -> bool:
        """Act on one frame of the client. Gives whether to go on."""
        try:
            message = client_messages.parse(frame)
        except InvalidRequest as error:
            return self._refuse_frame(error)
        self._bad = 0
        if isinstance(message, Close):
            self.connection.hang_up(NORMAL, "you said close")
            return False
        try:
            await self._deps.rates.count(self.admission.key, "writes", {})
            await (self._start(message) if isinstance(message, Start) else self._take(message))
        except RoostError as error:
            self.send(server_messages.error_message(error, message.id))
        return True

    def _refuse_frame(self, error: InvalidRequest) -> bool:
        """Answer a frame that is no message. Gives whether to go on."""
        self.send(server_messages.error_message(error))
        self._bad += 1
        if self._bad > _MOST_BAD:
            self.connection.hang_up(POLICY, "too many bad messages in a row")
        return self._bad <= _MOST_BAD

    async def _take(self, message: InputMessage) -> None:
        session_id = self.session_id
        if session_id is None:
            raise NotStarted()
        if self._refusal is not None:
            raise Forbidden(self._refusal)
        services = self._deps.services
        event = client_messages.event_of(message)
        drafts, receipts = drafts_of([event], "message"), receipts_of([event], None, b"")
        services[HarnessChoice].check_inputs(self._harness, drafts, "message")
        try:
            write = partial(services[Intake].accept, session_id, drafts, receipts)
            accepted = await services[Attachments].kept(
                self.admission.key, session_id, drafts, "message", write
            )
        except WrongAnswer as wrong:
            needed = _NEEDED[type(message)]
            raise WrongAnswer(f"requestId: this waits for a {needed}", hint=wrong.hint) from None
        except WrongInput:
            raise  # it may well wait
        except InvalidRequest:
            if isinstance(message, PermissionResponse | AskUserAnswer):
                await self._check_answered(session_id, message.requestId)
            raise
        if not accepted.repeated:
            self._deps.meters.accepted(1)
        [entry] = accepted.entries
        ack: dict[str, Any] = {
            "type": "ack",
            "id": message.id,
            "eventId": entry.id,
            "seq": entry.seq,
        }
        self.send(server_messages.frame(ack | ({"repeated": True} if accepted.repeated else {})))

    async def _check_answered(self, session_id: str, request_id: str) -> None:
        for entry in await self._questions(session_id):
            if entry.id == request_id:
                raise AlreadyAnswered(f"{request_id} was answered already, or interrupted")

    # How it begins

    async def _start(self, message: Start) -> None:
        if self.session_id is not None:
            raise AlreadyStarted()
        self.send(server_messages.connection_status("connecting"))
        session = await self._session(message)
        self._head = session.state.head
        self._task = session.spec.task_id
        self._harness = session.spec.harness
        self._refusal = await self._refused(session)
        self.seq = self._begins_at(message)
        self._asked = frozenset(pending.event_id for pending in session.state.pending)
        agent = await self._fanout.agent_of(session)
        self._welcome(message, session, agent)
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

    def _welcome(self, message: Start, session: Session, agent: AgentStatus) -> None:
        ack: dict[str, object] = {"type": "ack", "id": message.id, "sessionId": session.id}
        ack |= {"seq": self.seq, "head": self._head}
        if (self.admission.session_id or message.sessionId) and (
            ignored := client_messages.ignored_in(message, session.spec)
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

    def _begins_at(self, message: Start) -> int:
        after = self.admission.after if message.after is None else message.after
        if after is not None and after > self._head:
            raise InvalidRequest(f"after: the session's log ends at {self._head}, before {after}")
        return self._head if after is None else after

    async def _session(self, message: Start) -> Session:
        """The session that is meant, fresh from the store, or a new one."""
        bound = self.admission.session_id
        if bound is not None and message.sessionId not in (None, bound):
            raise Forbidden("sessionId: this socket was opened for another session")
        session_id = bound or message.sessionId
        lifecycle = self._deps.services[Lifecycle]
        if session_id is not None:
            return await self._deps.access.session(self.admission.key, session_id, "see")
        body, receipt = client_messages.creation_of(message)
        return await lifecycle.create(self.admission.key, body, (), receipt)

    async def _questions(self, session_id: str) -> list[Entry]:
        """The entries that asked for something, the newest first."""
        query = EventQuery(types=server_messages.ASKING, order="desc", limit=_MOST_ASKED)
        return await self._deps.services[EventPages].read(session_id, query)

    async def _refused(self, session: Session) -> str | None:
        """Why the client may only look on: more trust than its key has, or a workspace it may not use."""
        try:
            await self._deps.access.check(self.admission.key, session, "tell")
        except Forbidden as forbidden:
            return forbidden.message
        return None
