"""What a session is: its status as one table, what it was created with, where it stands.

create ──▶ idle ──a──▶ running ──b──▶ rescheduling
             ▲  ◀──d──  │   ◀──c──────┘ │ ↺ b
             └─────────d┴───────────────┘
idle, running, rescheduling ──e──▶ terminated

a  WAKE     an input arrived that makes work
b  RETRY    a passing failure; the harness will try again
c  RECOVER  the harness got through
d  REST     the turn is over, or waits for somebody
e  END      archived, or a failure that no retry mends
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from roost.domain.budget import Spent, monetary
from roost.domain.events import Micros
from roost.domain.rewinds import Rewind, Stretch, hidden
from roost.domain.usage import Usage
from roost.errors import InvalidRequest


class Status(StrEnum):
    """Where a session stands; the words are the API's."""

    IDLE = "idle"
    RUNNING = "running"
    RESCHEDULING = "rescheduling"
    TERMINATED = "terminated"


class Move(StrEnum):
    """What can happen to a status."""

    WAKE = "wake"
    RETRY = "retry"
    RECOVER = "recover"
    REST = "rest"
    END = "end"


TABLE: dict[tuple[Status, Move], Status] = {
    (Status.IDLE, Move.WAKE): Status.RUNNING,
    (Status.RUNNING, Move.RETRY): Status.RESCHEDULING,
    (Status.RESCHEDULING, Move.RETRY): Status.RESCHEDULING,
    (Status.RESCHEDULING, Move.RECOVER): Status.RUNNING,
    (Status.RUNNING, Move.REST): Status.IDLE,
    (Status.RESCHEDULING, Move.REST): Status.IDLE,
    (Status.IDLE, Move.END): Status.TERMINATED,
    (Status.RUNNING, Move.END): Status.TERMINATED,
    (Status.RESCHEDULING, Move.END): Status.TERMINATED,
}


def step(status: Status, move: Move) -> Status:
    """The status after the move.

    :raises InvalidRequest: the table has no such move
    """
    try:
        return TABLE[status, move]
    except KeyError:
        raise InvalidRequest(f"a session that is {status} cannot {move}") from None


TrustLevel = Literal["full", "vault", "sandboxed"]
MountScope = Literal["workspace", "workspace+vault"]

ON_HOST: Final[Sequence[TrustLevel]] = ("vault", "full")
"""The levels of sessions that are not isolated from the host."""

SANDBOXED_ONLY: Final[Sequence[TrustLevel]] = ("sandboxed",)
"""What a server offers whose operator has not said otherwise: the others act on the host."""

_RANK: dict[TrustLevel, int] = {"sandboxed": 0, "vault": 1, "full": 2}


def reaches(ceiling: TrustLevel, level: TrustLevel) -> bool:
    """Whether a trust level is no higher than the ceiling."""
    return _RANK[level] <= _RANK[ceiling]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a session was created with. Changes only through an update, which is itself an event.

    `sandbox` is the kind of sandbox it was given, and keeps; None if its harness needs none, or if it
    was made before kinds were noted. `sandbox_fallback` is the kind, or the trust level, that it was to get
    if there had been none.
    `sdk_session_id` is what the agent's own program calls the session, and is resumed by. `forked_from`
    is the session and the event it began at, `origin` the session whose names its agent's things have.
    `model_vault` is the one of its vaults whose key its requests to the model have; None: the operator's.
    `created_by` is whose it is (`Key.principal`), "" if it was made before that was noted. `deployment_id` is the
    deployment that a run has made it for; a copy of the session is nobody's run. `self_hosted`: its built-in tools
    are run by workers elsewhere.
    """

    agent: dict[str, Any]
    environment_id: str
    title: str | None = None
    metadata: dict[str, str] = {}
    vault_ids: list[str] = []
    resources: list[dict[str, Any]] = []
    budget: dict[str, Any] | None = None
    trust_level: TrustLevel = "sandboxed"
    workspace: str | None = None
    mount_scope: MountScope = "workspace"
    harness: str = "scripted"
    sandbox: str | None = None
    sandbox_fallback: str | None = None
    sdk_session_id: str | None = None
    task_id: str | None = None
    forked_from: dict[str, str] | None = None
    origin: str | None = None
    created_by: str = ""
    model_vault: str | None = None
    deployment_id: str | None = None
    self_hosted: bool = False

    @property
    def fell_back(self) -> bool:
        """Whether it was made with the sandbox that it was to get only if there was no other."""
        return self.sandbox is not None and self.sandbox_fallback in (
            self.sandbox,
            self.trust_level,
        )


class Pending(msgspec.Struct, frozen=True):
    """An event the session waits on: a permission to give, or a result only a client can bring.

    `tool`: a worker brings the result of a built-in tool; `gated_tool`: once somebody has allowed it. `offered`: of a
    custom tool, which a worker may have, too.
    """

    event_id: str
    kind: Literal["confirmation", "custom_tool", "tool", "gated_tool"]
    offered: bool = False

    @property
    def by_worker(self) -> bool:
        """Whether a worker makes the call that is waited for."""
        return self.kind in ("tool", "gated_tool")


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stands: one row, changed only together with the entries that say why.

    `turn` has the seqs of the inputs handed to the agent for its current turn, None between turns:
    after a crash, those are the ones to hand to it again. `first_input` is the seq of the first input since
    the session last rested, `queued` the slots that waiting inputs take in the queue, `sent` the seq
    of the newest input, and `sent_at` its moment. `usage` is what the agent says its requests have
    used, `spent` what the way out has counted. `trust_level` and `budget` are the spec's, for entries to say.
    `turned` is the seq at which the last turn ended, 0 while there is another one, or a rewind since.
    `rewinds` are all there were, oldest first. `limited`: it rests because the budget has stopped its turn.
    """

    thread_id: str
    agent_name: str
    trust_level: TrustLevel = "sandboxed"
    status: Status = Status.IDLE
    head: int = 0
    generation: int = 0
    owner: str | None = None
    pending: tuple[Pending, ...] = ()
    queued: int = 0
    usage: Usage = Usage()
    spent: Spent = Spent()
    turn: tuple[int, ...] | None = None
    first_input: int = msgspec.field(default=0, name="run")
    sent: int = 0
    sent_at: Micros = 0
    active_since: Micros = 0
    active: Micros = 0
    archived_at: Micros | None = None
    turned: int = 0
    rewinds: tuple[Rewind, ...] = ()
    limited: bool = False
    budget: dict[str, Any] | None = None

    @property
    def rewound(self) -> list[Stretch]:
        """The parts of the log that are no longer part of the conversation."""
        return hidden(self.rewinds, self.head) if self.rewinds else []

    def active_seconds(self, now: Micros) -> float:
        """How long the session has worked in all, up to now."""
        running = now - self.active_since if self.active_since else 0
        return (self.active + running) / 1_000_000

    def shown_usage(self, active_seconds: float) -> dict[str, object]:
        """The API's `usage` object; with the cost, where there are list prices to tell it by."""
        cost = monetary(self.spent.cost) if self.spent.cost else None
        return self.usage.for_session(active_seconds, cost)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as read from the store, at `read_at` by the store's clock."""

    id: str
    tenant: str
    spec: Spec
    state: State
    created_at: Micros
    updated_at: Micros
    read_at: Micros = 0


class Lease(msgspec.Struct, frozen=True):
    """The right to write as a session's runner, until somebody claims it with a higher generation."""

    session_id: str
    node: str
    generation: int
