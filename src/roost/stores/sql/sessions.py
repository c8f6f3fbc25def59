"""Sessions as records: what the databases have in common about making and listing them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.domain import ledger
from roost.domain.events import Draft, Micros
from roost.domain.ids import mint
from roost.domain.pen import Change
from roost.domain.session import Session, Spec, State, Status
from roost.errors import IdempotencyMismatch, NotFound, QuotaExceeded, RoostError
from roost.ports import sessions as ports
from roost.ports.log import Receipt
from roost.ports.sessions import Revised, Revision, Rewinding, Seen, SessionQuery
from roost.stores.sql.listing import Filter, Value
from roost.stores.sql.rows import Row


class New(msgspec.Struct, frozen=True):
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
    ) -> New:
        """With the state that every session begins in."""
        state = State(
            thread_id=mint("sthr"),
            agent_name=str(spec.agent.get("name", "")),
            trust_level=spec.trust_level,
            budget=spec.budget,
        )
        return cls(tenant, session_id, spec, state, drafts, receipt, max_sessions)


def rewound(state: State, before: Spec, rewinding: Rewinding, now: Micros) -> Change:
    """What the ledger says to a rewind of a session that was made as `before`."""
    return ledger.rewind(
        state,
        rewinding.seen,
        rewinding.to,
        rewinding.mark,
        before.sdk_session_id,
        rewinding.draft,
        now,
    )


def revised(before: Session, revision: Revision) -> Revised | None:
    """What it is to be; None: it stays as it is."""
    after = revision(before)
    if after.spec == before.spec:
        return after if after.drafts else None
    if not after.drafts:
        raise RoostError("a session does not change without an event that says so")
    return after


def absent(session_id: str) -> NotFound:
    """The error that says so."""
    return NotFound(f"there is no session {session_id}")


def no_workspace(workspace_id: str | None) -> NotFound:
    """The error that says so."""
    return NotFound(f"there is no workspace {workspace_id}")


# How many sessions a tenant has, archived ones too, as far as it matters.
COUNT_KEPT = """
SELECT count(*) FROM (SELECT 1 FROM sessions WHERE tenant = ? LIMIT ?) AS counted
"""


def too_many_kept() -> QuotaExceeded:
    """The error that says so."""
    return QuotaExceeded(
        f"{ports.MOST_KEPT} sessions are kept already, archived ones included, and no more are allowed",
        hint="Delete archived sessions that are no longer needed.",
    )


def too_many(most: int) -> QuotaExceeded:
    """The error that says so."""
    return QuotaExceeded(
        f"there are {most} sessions already, and no more are allowed",
        hint="Archive or delete sessions that are no longer needed.",
    )


def matching(known: Sequence[Row], receipt: Receipt) -> str | None:
    """The session that was made under a receipt, from rows of (fingerprint, session_id).

    :raises IdempotencyMismatch: another request was made under its key
    """
    if not known:
        return None
    fingerprint, session_id = known[0]
    if fingerprint != receipt.fingerprint:
        raise IdempotencyMismatch()
    return str(session_id)


def _seen(seen: Seen) -> tuple[str, list[Value]]:
    """The condition that a session may be shown, and its values."""
    shared = ", ".join("?" * len(seen.workspaces)) or "NULL"
    gone = "NOT EXISTS (SELECT 1 FROM records w WHERE w.id = s.workspace)"
    own = "" if seen.created_by is None else " AND s.created_by = ?"
    values: list[Value] = [*seen.workspaces]
    if seen.created_by is not None:
        values.append(seen.created_by)
    return f"s.workspace IN ({shared}) OR ((s.workspace = '' OR {gone}){own})", values


def listed(query: SessionQuery, beyond: int | None, waits: str) -> tuple[str, list[Value]]:
    """A page of sessions: the conditions and the order, and their values. `waits` is the condition that a session
    has something pending, which databases write differently.
    """
    descending = (query.order == "desc") is not query.reverse
    where = Filter().equal("s.tenant", query.tenant)
    where.equal("s.agent_id", query.agent_id)
    where.equal("s.agent_version", query.agent_version)
    where.equal("s.environment_id", query.environment_id)
    where.equal("s.workspace", query.workspace)
    where.among("s.status", query.statuses)
    if query.waiting:
        where.either(f"s.status = ? AND {waits}", [Status.IDLE.value])
    if query.seen is not None:
        where.either(*_seen(query.seen))
    where.at_least("s.created_at", query.since)
    where.at_most("s.created_at", query.until)
    if not query.include_archived:
        where.absent("s.archived_at")
    where.beyond("s.num", beyond, descending)
    order = f"ORDER BY s.num {'DESC' if descending else 'ASC'} LIMIT ?"
    return f"WHERE {where.text} {order}", [*where.values, query.limit]
