"""How one kind of agent is driven.

A `Harness` opens a `Conversation` for a session; the conversation takes turns. What comes out of a
turn is a stream of outputs, written to the log by `core/work/turn` in the order they come. A harness
keeps no state that the log or the session's home does not have: killed at any moment, it is opened
again and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from roost.domain.events import Draft, Entry
from roost.domain.session import Pending, Session
from roost.domain.usage import Usage
from roost.ports.egress import OpenGrant
from roost.ports.harness_profile import HarnessProfile
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import Mount


class Emit(msgspec.Struct, frozen=True):
    """Events to log. `spent` is what they cost; `blocks` are those the session must wait for, and
    `unblocks` the ids of earlier ones that it need not wait for any more, though nobody has answered them.

    What is said `aside` tells nothing of how the agent fares: one that is trying again still does. What is said
    `meanwhile` need not be logged before the harness goes on; it is logged before all that follows.
    """

    drafts: Sequence[Draft]
    spent: Usage | None = None
    blocks: Sequence[Pending] = ()
    aside: bool = False
    unblocks: Sequence[str] = ()
    meanwhile: bool = False


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


class TurnEnd(msgspec.Struct, frozen=True):
    """The turn is over: always the last output. Without one, a turn has failed."""

    stop_reason: dict[str, Any]


Output = Emit | Show | Trouble | TurnEnd


class Confinement(msgspec.Struct, frozen=True):
    """Where an agent's tools may go, on a machine whose walls do not keep them in.

    `root` is the directory they have to stay in, and where the agent works; `hidden` are directories
    in it that they must not touch. `home` is what the agent takes `~` for.
    """

    root: Path
    home: Path
    hidden: Sequence[Path] = ()


class StartMode(Enum):
    """How a conversation begins: what there is of it already, and whether its program starts at once.

    `AHEAD` starts it before there is anything to tell it: only if no turn was cut off, no answer is waited
    for, and its files are whole, because then there is nothing it would have to be told first.
    """

    FRESH = "fresh"
    """No runner has had the session before."""
    FRESH_AHEAD = "fresh_ahead"
    RESUME = "resume"
    """An earlier runner had the session, so the program may have a transcript to go on with."""
    RESUME_AHEAD = "resume_ahead"
    RESUME_BEHIND = "resume_behind"
    """As RESUME, but the files may be older than the log, because a node died before it stored them.
    What the program's own record lacks, the agent has to be told."""

    @classmethod
    def of(cls, *, resumed: bool, ahead: bool = False) -> StartMode:
        """The one that fits, if the session's files are whole."""
        if resumed:
            return cls.RESUME_AHEAD if ahead else cls.RESUME
        return cls.FRESH_AHEAD if ahead else cls.FRESH

    def behind(self) -> StartMode:
        """The one for files that may be behind: only behind what an earlier runner has logged."""
        return StartMode.RESUME_BEHIND if self.resumes else StartMode.FRESH

    @property
    def resumes(self) -> bool:
        """Whether an earlier runner had the session."""
        return self not in (StartMode.FRESH, StartMode.FRESH_AHEAD)

    @property
    def ahead(self) -> bool:
        """Whether the program is to be started at once."""
        return self in (StartMode.FRESH_AHEAD, StartMode.RESUME_AHEAD)


History = Callable[[], AsyncIterator[Entry]]


class SkillNote(msgspec.Struct, frozen=True):
    """A skill as a model is told of it: the name of its directory, and when to use it."""

    name: str
    description: str


class Brief(msgspec.Struct, frozen=True):
    """What a harness is told when a conversation is opened.

    `history` reads the log from its beginning, in order. `sandbox` is where its processes live; a
    harness that starts none is given none. With a `confinement` there are no walls around that sandbox,
    and the harness itself has to refuse every call of a tool that would leave it. `addresses` are those at
    which its MCP servers are found inside, by their own URLs: their tokens are put on behind it, so a program
    gives a placeholder. A server that is not among them is reached under its own URL. `grant` is what the sandbox
    reaches, for a harness that asks the model from outside of it (`HarnessProfile.on_demand`). `skills` are those
    that the sandbox will show at `harness_profile.SKILLS`.
    """

    session: Session
    history: History
    start: StartMode
    sandbox: Sandbox | None = None
    confinement: Confinement | None = None
    addresses: Mapping[str, str] = {}
    grant: OpenGrant | None = None
    skills: Sequence[SkillNote] = ()


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

        Called from other tasks: by `core/work/starter`, since only so many may come up at once, and by
        `core/work/prestart`.
        """
        ...

    async def interrupt(self) -> None:
        """Ask the running turn to stop soon; it then ends with `TurnEnd`. Called from another task."""
        ...


class Harness(Protocol):
    """One kind of agent: what it declares, whether it can be used here, and how it is started."""

    @property
    def name(self) -> str:
        """The word a session names it by."""
        ...

    @property
    def profile(self) -> HarnessProfile:
        """What it declares: the same on every machine."""
        ...

    @property
    def mounts(self) -> Sequence[Mount]:
        """What its processes need to find inside a sandbox.

        Asked only of a harness that `check` has found to be usable here.
        """
        ...

    def check(self) -> str:
        """The version of its program, or of itself if it has none. Called when a server starts, and by
        `roost doctor`.

        :raises RoostError: it cannot be used on this machine; the message says why, the hint what to do
        """
        ...

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        """The models that this agent may ask its upstream for: ids, or beginnings of ids that end in `*`.

        Called by `core/sandbox` where the operator limits models. The agent's definition is a client's:
        a `*` in it must not become a pattern.
        """
        ...

    def open(self, brief: Brief) -> AbstractAsyncContextManager[Conversation]:
        """Start the agent for a session. Called by `core/work/starter`, and by `core/work/prestart` for one that
        is started ahead.

        :raises RoostError: it cannot be started; the session says so and waits
        """
        ...
