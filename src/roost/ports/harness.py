"""How one kind of agent is driven.

A `Harness` opens a `Conversation` for a session; the conversation takes turns. What comes out of a
turn is a stream of outputs, written to the log by `core/work/turn` in the order they come. A harness
keeps no state that the log or the session's home does not have: killed at any moment, it is opened
again and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from roost.domain.events import Draft, Entry
from roost.domain.session import Pending, Session
from roost.domain.usage import Usage
from roost.ports.sandbox import Mount, Sandbox

SKILLS: Final = "/run/roost/agent/skills"
"""Where a sandbox shows the agent's skills, each in a directory of its name, read-only."""

AGENTS_OWN: Final = frozenset({".claude"})
"""Directories in a session's home that are its agent's own business: its transcript and its settings."""


class Emit(msgspec.Struct, frozen=True):
    """Events to log. `spent` is what they cost; `blocks` are those the session must wait for, and
    `unblocks` the ids of earlier ones that it need not wait for any more, though nobody has answered them.

    What is said `aside` tells nothing of how the agent fares: one that is trying again still does.
    """

    drafts: Sequence[Draft]
    spent: Usage | None = None
    blocks: Sequence[Pending] = ()
    aside: bool = False
    unblocks: Sequence[str] = ()


class Show(msgspec.Struct, frozen=True):
    """Text of an event to come, for whoever watches now; empty text announces the event."""

    event_id: str
    type: str
    text: str = ""


class Trouble(msgspec.Struct, frozen=True):
    """A failure. `retrying`: the harness goes on by itself after a pause. `exhausted`: this turn is
    lost, the session is not. `terminal`: the session cannot go on.
    """

    error: str
    message: str
    retry: Literal["retrying", "exhausted", "terminal"]


class Rest(msgspec.Struct, frozen=True):
    """The turn is over: always the last output. Without one, a turn has failed."""

    stop_reason: dict[str, Any]


Output = Emit | Show | Trouble | Rest


class Bounds(msgspec.Struct, frozen=True):
    """Where an agent's tools may go, on a machine whose walls do not keep them in.

    `root` is the directory they have to stay in, and where the agent works; `hidden` are directories
    in it that they must not touch. `home` is what the agent takes `~` for.
    """

    root: Path
    home: Path
    hidden: Sequence[Path] = ()


class Brief(msgspec.Struct, frozen=True):
    """What a harness is told when a conversation is opened.

    `history` reads the log from its beginning, in order. `resumed` says that an earlier runner had
    the session, so there may be a transcript to go on with. `sandbox` is where its processes live;
    a harness that starts none is given none. With `bounds` there are no walls around that place, and
    the harness itself has to refuse every call of a tool that would leave them. `ahead`: no turn was cut
    off and no answer is waited for, so its program may be started at once, before there is anything to
    tell it. `behind`: the files in the place may be older than the log, because a node died before it
    stored them; what the agent's own record lacks, it has to be told.
    """

    session: Session
    history: Callable[[], AsyncIterator[Entry]]
    resumed: bool
    sandbox: Sandbox | None = None
    bounds: Bounds | None = None
    ahead: bool = False
    behind: bool = False


class Conversation(Protocol):
    """An agent that has been started, or started again, for one session."""

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        """Give the agent these inputs and yield what it does until it rests.

        Called by `core/work/turn` for one turn at a time. Each input's id is its idempotency key: with
        `again` the same inputs may have been given before a crash, and must not be acted on twice.
        Closing the generator abandons the turn.
        """
        ...

    async def up(self) -> bool:
        """Wait until its program, started ahead or by the first turn, is up; whether it is (still).

        Called from other tasks: by `core/work/runner`, since only so many may come up at once, and by
        `core/work/prestart`.
        """
        ...

    async def interrupt(self) -> None:
        """Ask the running turn to stop soon; it then ends with `Rest`. Called from another task."""
        ...


class Harness(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """The word a session names it by."""
        ...

    @property
    def mounts(self) -> Sequence[Mount] | None:
        """What its processes need to find inside a sandbox; None if it starts none and needs none."""
        ...

    def open(self, brief: Brief) -> AbstractAsyncContextManager[Conversation]:
        """Start the agent for a session. Called by `core/work/runner` once per lease.

        :raises RoostError: it cannot be started; the session says so and waits
        """
        ...
