"""Sessions as records: created, read, changed, ended. Their events live in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from roost.domain.events import Draft, Entry, Micros
from roost.domain.rewinds import Stretch
from roost.domain.session import Session, Spec
from roost.ports.log import Receipt

MOST_KEPT: Final = 1_000_000
"""Sessions of a tenant whose sessions are bounded at all, archived ones included."""


class Revised(NamedTuple):
    """A session's new spec, and the events that say so: without any, it is refused. So whoever has seen a
    session up to its head knows its spec. `wakes`: if it is idle and has work, it goes on.
    """

    spec: Spec
    drafts: Sequence[Draft] = ()
    wakes: bool = False


Revision = Callable[[Session], Revised]
"""From the session as it stands to what it is to be. Pure: may run twice."""


class Visibility(msgspec.Struct, frozen=True):
    """What a listing may show: the sessions in these workspaces; and of those that are in none, or in one that
    was deleted, the ones that this principal has made, or with None all.
    """

    created_by: str | None
    workspaces: Sequence[str] = ()


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a listing shows, by creation. `after` is the id of the last one seen.

    `reverse` walks back: the sessions just before `after`, still given in `order`. `seen`: no others than
    these; None: all of the tenant's. `waiting`: only those that are idle until somebody answers.
    """

    tenant: str
    agent_id: str | None = None
    agent_version: int | None = None
    environment_id: str | None = None
    workspace: str | None = None
    deployment_id: str | None = None
    seen: Visibility | None = None
    statuses: Sequence[str] = ()
    waiting: bool = False
    include_archived: bool = False
    since: Micros | None = None
    until: Micros | None = None
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    reverse: bool = False
    limit: int = 20


class Cutting(msgspec.Struct, frozen=True):
    """The part of a log that another session begins with. `rests`: its last entry says so."""

    source: str
    stretches: Sequence[Stretch]
    rests: bool


class Planting(msgspec.Struct, frozen=True):
    """A log from elsewhere, which can be read more than once. `thread_id` is what its entries name."""

    thread_id: str
    entries: Iterable[Entry]


class Rewinding(msgspec.Struct, frozen=True):
    """Where a conversation goes on from; see `domain.rewinds.Rewind`. `seen` is the log's end it knows of."""

    seen: int
    to: int
    mark: int
    spec: Spec
    draft: Draft


class Sessions(Protocol):
    """The sessions of all tenants; every call names the tenant it is for."""

    async def create(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        drafts: Sequence[Draft] = (),
        *,
        receipt: Receipt | None = None,
        max_sessions: int | None = None,
    ) -> Session:
        """Make a session and accept its first inputs, in one transaction.

        With a receipt that is known, the session made then is returned and nothing is written.

        :raises QuotaExceeded: the tenant has `max_sessions` that are not archived, or `MOST_KEPT`
        :raises NotFound: the tenant has no such workspace as the spec names
        :raises IdempotencyMismatch: a known key with another fingerprint
        """
        ...

    async def fork(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        cutting: Cutting,
        drafts: Sequence[Draft],
        *,
        receipt: Receipt | None = None,
        max_sessions: int | None = None,
    ) -> Session:
        """Make a session whose log is a part of another one's, then these drafts, in one transaction.

        It rests, and has been somebody's: `generation` is 1. What waited in the other one's queue is not
        in it. As for `create`, with a known receipt nothing is written.

        :raises NotFound: there is no such source, or it is another tenant's
        :raises QuotaExceeded: :raises IdempotencyMismatch: see `create`
        """
        ...

    async def plant(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        planting: Planting,
        drafts: Sequence[Draft],
        *,
        max_sessions: int | None = None,
    ) -> Session:
        """As `fork`, with a log that comes from elsewhere. :raises QuotaExceeded:"""
        ...

    async def rewind(self, tenant: str, session_id: str, rewinding: Rewinding) -> Session:
        """Let its conversation go on from an earlier place, and say so, in one transaction.

        :raises NotFound: :raises SessionClosed: :raises SessionBusy: it runs, or something waits
        :raises Conflict: something was written since `seen`
        """
        ...

    async def made(self, tenant: str, receipt: Receipt) -> Session | None:
        """The session that was created under this receipt, if one was.

        Called before the rest of a repeated request is looked at: what it refers to may be gone.

        :raises IdempotencyMismatch: a known key with another fingerprint
        :raises NotFound: one was, and has been deleted
        """
        ...

    def known(self, tenant: str, session_id: str) -> Session | None:
        """As `get`, if the store knows what is committed without looking; None: it has to be asked."""
        ...

    async def get(self, tenant: str, session_id: str) -> Session:
        """The session of that id, if it is the tenant's. :raises NotFound: absent, or another tenant's"""
        ...

    async def find(self, session_id: str) -> Session:
        """The session whoever it belongs to: for runners, never for requests. :raises NotFound:"""
        ...

    async def with_inputs(self, session_id: str) -> tuple[Session, list[Entry]]:
        """As `find`, and the inputs not yet taken up: what is not among them came after its head."""
        ...

    async def page(self, query: SessionQuery) -> list[Session]:
        """A page of sessions, in the order asked for."""
        ...

    async def revise(self, tenant: str, session_id: str, revision: Revision) -> Session:
        """Change the spec and append what says so, in one transaction.

        :raises NotFound: absent, or another tenant's; and whatever `revision` raises
        """
        ...

    async def archive(self, tenant: str, session_id: str) -> Session:
        """End it for good; it stays readable. Again: the same answer.

        :raises NotFound: :raises SessionBusy: it runs
        """
        ...

    async def delete(self, tenant: str, session_id: str) -> None:
        """Remove it and its log. :raises NotFound: :raises SessionBusy: it runs"""
        ...
