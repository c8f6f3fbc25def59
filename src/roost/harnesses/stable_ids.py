"""Names that come out the same whenever they are worked out again.

An event's id is derived from what the agent calls the thing: so what was logged before a crash is
recognised afterwards, and a preview has the id of the event it announces. The session's id is part of
every name: whatever a sandbox prints, it cannot name anything of another session.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Sequence
from hashlib import blake2b
from uuid import uuid5

from roost.domain.events import Entry
from roost.domain.session import Session
from roost.ids import OURS, conversation_id


def thread_of(call_id: str) -> str:
    """The thread of the subagent that a call has started, by the call's event."""
    return call_id.replace("sevt_", "sthr_", 1)


class StableIds:
    """The ids of one session's events and prompts, derived from what the CLI calls each of them."""

    def __init__(self, session_id: str, conversation: str | None = None) -> None:
        self._session_id = session_id
        self.conversation = conversation or conversation_id(session_id)
        """What the CLI calls the session."""

    @classmethod
    def of(cls, session: Session) -> StableIds:
        """A session's. One that began with another's transcript goes on with the other's names."""
        return cls(session.spec.origin or session.id, session.spec.sdk_session_id)

    def prompt(self, inputs: Sequence[Entry]) -> str:
        """What the CLI is to call these inputs; it acts on a name once."""
        return str(uuid5(OURS, " ".join([self._session_id, *(entry.id for entry in inputs)])))

    def block(self, message_id: str, kind: str, nth: int) -> str:
        """The event of a message's `nth` block of its kind."""
        return self._event("block", message_id, kind, str(nth))

    def call(self, tool_use_id: str) -> str:
        """The event of a tool call."""
        return self._event("call", tool_use_id)

    def result(self, tool_use_id: str) -> str:
        """The event of a tool call's result."""
        return self._event("result", tool_use_id)

    def begun(self, tool_use_id: str) -> str:
        """The event that says that the subagent was started."""
        return self._event("begun", tool_use_id)

    def _event(self, *parts: str) -> str:
        named = "\0".join([self._session_id, *parts]).encode(errors="surrogatepass")
        digest = blake2b(named, digest_size=16).digest()
        return f"sevt_{b32encode(digest)[:26].decode().lower()}"
