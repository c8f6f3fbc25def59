"""How structs become rows and rows become structs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from roost.domain.events import Draft, Entry, Micros
from roost.domain.session import Session, Spec, State, Status
from roost.ids import mint
from roost.ports.log import Receipt

Row = tuple[Any, ...]

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
_decode_spec = msgspec.json.Decoder(Spec).decode

_IN_COLUMNS: Final = ("status", "owner", "active_since", "archived_at")
_IN_HEADS: Final = ("head", "queued", "sent", "sent_at")
_IN_REST: Final = {
    name: key
    for name, key in zip(State.__struct_fields__, State.__struct_encode_fields__, strict=True)
    if name not in _IN_COLUMNS + _IN_HEADS
}
_rest_in = attrgetter(*_IN_REST)

SESSION_COLUMNS = """
       s.num, s.id, s.tenant, s.created_at, h.updated_at,
       s.status, s.owner, s.active_since, s.archived_at, s.rest,
       h.head, h.queued, h.sent, h.sent_at, h.waits_from
"""
"""From `SESSIONS`."""

SESSIONS = "sessions s JOIN heads h ON h.session = s.num"
"""Sessions, and `h`: what changes with each of their entries."""

ENTRY_COLUMNS = "e.seq, e.id, e.type, e.body, e.at, e.queued"


class NewSession(msgspec.Struct, frozen=True):
    """A session that is to be made."""

    tenant: str
    id: str
    spec: Spec
    state: State
    drafts: Sequence[Draft]
    receipt: Receipt | None
    max_sessions: int | None

    @classmethod
    def of(
        cls,
        tenant: str,
        session_id: str,
        spec: Spec,
        drafts: Sequence[Draft],
        receipt: Receipt | None,
        max_sessions: int | None,
    ) -> NewSession:
        """With the state that every session begins in."""
        state = State(
            thread_id=mint("sthr"),
            agent_name=str(spec.agent.get("name", "")),
            trust_level=spec.trust_level,
            budget=spec.budget,
        )
        return cls(tenant, session_id, spec, state, drafts, receipt, max_sessions)


class Settled(msgspec.Struct, frozen=True):
    """A session as it is committed; `spec_version` is another one after each change of its spec."""

    state: State
    updated_at: Micros
    spec_version: int


class CachedSession:
    """A session as a batch knows it, ahead of the database until that is committed."""

    __slots__ = (
        "batch",
        "created_at",
        "id",
        "num",
        "spec_version",
        "state",
        "tenant",
        "updated_at",
        "waiting",
        "waits_from",
    )

    def __init__(self, num: int, id: str, tenant: str, now: Micros, state: State) -> None:
        self.num = num
        self.id = id
        self.tenant = tenant
        self.created_at = now
        self.updated_at = now
        self.state = state
        self.spec_version = 0
        self.batch = 0
        """The number of the last batch that has changed it."""
        self.waiting: set[int] | None = set()
        """The seqs of the inputs that wait; None: not looked up yet."""
        self.waits_from = 0

    def session(self, spec: Spec, now: Micros) -> Session:
        """The whole session, as callers get it at this moment."""
        return Session(
            id=self.id,
            tenant=self.tenant,
            spec=spec,
            state=self.state,
            created_at=self.created_at,
            updated_at=self.updated_at,
            read_at=now,
        )


def cached_of(row: Row) -> CachedSession:
    """From a row of `SESSION_COLUMNS`."""
    num, id, tenant, created_at, updated_at, status, owner, active_since, archived_at = row[:9]
    rest, head, queued, sent, sent_at, waits_from = row[9:]
    state = replace(
        _rest_of_state(rest),
        status=Status(status),
        owner=owner or None,
        active_since=active_since,
        archived_at=archived_at,
        head=head,
        queued=queued,
        sent=sent,
        sent_at=sent_at,
    )
    cached = CachedSession(num, id, tenant, created_at, state)
    cached.updated_at = updated_at
    cached.waits_from = waits_from
    cached.waiting = None if waits_from else set()
    return cached


@lru_cache(maxsize=10_000)
def _rest_of_state(rest: bytes) -> State:
    """What has no column of its own. It is read again and again while a log grows, and seldom changes."""
    return msgspec.convert(decode(rest), State)


def turned_of(rest: bytes) -> int:
    """Where a session's last turn has ended, from its column `rest`."""
    return _rest_of_state(rest).turned


def session_of(row: Row, now: Micros) -> Session:
    """From a row of `SESSION_COLUMNS` and the spec, read at this moment."""
    return cached_of(row[:-1]).session(spec_of(row[-1]), now)


def spec_of(spec: bytes) -> Spec:
    """A session's spec, from its column."""
    return _decode_spec(spec)


def state_columns(state: State) -> Row:
    """status, owner, active_since, archived_at, rest."""
    rest = dict(zip(_IN_REST.values(), _rest_in(state), strict=True))
    return (
        state.status.value,
        state.owner or "",
        state.active_since,
        state.archived_at,
        encode(rest),
    )


PENDING: Final = '"pending":[{'
"""What the column `rest` has in it if somebody has to answer the session. In a text that is part of it, a
quotation mark has a backslash before it. It is searched for without an index: `rest` changes too often.
"""


def head_columns(cached: CachedSession) -> Row:
    """head, queued, waits_from, sent, sent_at, updated_at, session."""
    at = cached.state
    return (
        at.head,
        at.queued,
        cached.waits_from,
        at.sent,
        at.sent_at,
        cached.updated_at,
        cached.num,
    )


def entry_of(row: Row) -> Entry:
    """From a row of `ENTRY_COLUMNS`."""
    seq, id, type, body, at, queued = row
    return Entry(seq, id, type, body, at, queued == 1)


def spec_columns(spec: Spec) -> Row:
    """agent_id, agent_version, environment_id, workspace, created_by: what listings look for in a spec."""
    agent = spec.agent
    made_of = str(agent.get("id", "")), int(agent.get("version", 0))
    return (*made_of, spec.environment_id, spec.workspace or "", spec.created_by)
