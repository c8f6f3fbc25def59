"""Plain records with versions: agents, environments, tasks, logins, files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from roost.domain.events import Micros
from roost.domain.session import TrustLevel

Kind = str
"""What a record is: `agent`, `task`, … A new resource takes a word of its own. One whose records are looked for by
when they are due among those of one thing alone puts that behind a colon: `work:env_…`.
"""

COUNTED_BY_OWNER: Final[frozenset[Kind]] = frozenset(
    (
        *("login", "run", "file", "file_note", "file_hold", "installation"),
        *("environment_key", "work", "work_watch"),
    )
)
"""The kinds whose owners see to it that there are not too many: of work items, a session has one. The store sees to
it for all others.
"""

MOST_RECORDS: Final = 100_000  # of one such kind and one tenant, archived ones included
MOST_VERSIONS: Final = 10_000  # of one of these records, but for those below
KEPT_VERSIONS: Final[dict[Kind, int]] = {
    "task": 100,
    "deployment": 1,
    "work": 1,
    "work_watch": 1,
    "worker": 1,
}
"""Of the kinds whose old versions nobody asks for: each run of a task adds some."""


def kept_versions(kind: Kind) -> int | None:
    """How many versions are kept of a record; None: all. A kind may have what it is for behind a colon."""
    return KEPT_VERSIONS.get(kind.partition(":")[0])


def is_counted_by_owner(kind: Kind) -> bool:
    """Whether the store need not count the records of this kind."""
    return kind.partition(":")[0] in COUNTED_BY_OWNER


SYSTEM_TENANT: Final = ""
"""The tenant of what belongs to the server itself, or to all tenants. No key can have it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a thing. `body` is what its owner configured; the store never looks inside.

    `created_by` is whose it is (`Key.principal`), "" if nobody's or from before that was noted. `ceiling` is
    how far the key that wrote this version was trusted; None: not noted. `due_at` is when something is to be
    done about the record, which all its versions share; None: never.
    """

    kind: Kind
    tenant: str
    id: str
    version: int
    body: dict[str, Any]
    created_at: Micros
    updated_at: Micros
    archived_at: Micros | None = None
    created_by: str = ""
    ceiling: TrustLevel | None = None
    due_at: Micros | None = None


class RecordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records a listing shows, newest first; `after` is the id of the last one seen.

    `name`: only those with this `name` in their bodies. `created_by`: only those of one.
    """

    kind: Kind
    tenant: str
    name: str | None = None
    created_by: str | None = None
    include_archived: bool = False
    since: Micros | None = None
    until: Micros | None = None
    after: str | None = None
    limit: int = 20


class Catalog(Protocol):
    """Versioned records of all tenants; every call but `every` and `due` names the tenant it is for."""

    async def add(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        body: dict[str, Any],
        *,
        unique_name: bool,
        created_by: str = "",
        ceiling: TrustLevel | None = None,
        due_at: Micros | None = None,
    ) -> Record:
        """A new record at version 1.

        :raises Conflict: `unique_name`, and a record that is not archived has `body["name"]`
        :raises QuotaExceeded: the tenant has `MOST_RECORDS`
        """
        ...

    async def get(
        self, kind: Kind, tenant: str, record_id: str, version: int | None = None
    ) -> Record:
        """The newest version, or the one asked for. :raises NotFound:"""
        ...

    async def named(self, kind: Kind, tenant: str, name: str) -> Record | None:
        """The newest record that has this name and is not archived; None if there is none."""
        ...

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of records at their newest versions."""
        ...

    async def every(self, kind: Kind, *, before: str | None = None, limit: int) -> list[Record]:
        """Records of all tenants that are not archived, those with the highest ids first, below `before`.

        For the server itself: when it starts with a blob store that is not known to be its own.
        """
        ...

    async def due(self, kind: Kind, before: Micros, *, limit: int) -> list[Record]:
        """Records of all tenants that are due before a time, those due for longest first; not archived ones.

        It costs the same however many records are not due. Whoever has done what was due changes `due_at`. It is
        asked for deployments and tasks, which are due at the next time of their schedule (`ports/runs.py`).
        """
        ...

    async def versions(
        self, kind: Kind, tenant: str, record_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        """A record's versions below `before`, newest first. :raises NotFound:"""
        ...

    async def change(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        change: Callable[[Record], dict[str, Any]],
        *,
        expected: int | None = None,
        unique_name: bool = False,
        ceiling: TrustLevel | None = None,
        due_at: Micros | UnsetType | None = UNSET,
    ) -> Record:
        """Apply `change` to the newest body in one transaction; a new version if it differs.

        The new version has this `ceiling`, or, without one, that of the last. One that is higher than the last
        makes a new version even of the same body: somebody vouches for it. `due_at` is set, or cleared by None,
        if it is given; that alone makes no new version.

        :raises NotFound: :raises Conflict: the version is not `expected`, or `unique_name` and the
            new name is another record's; and whatever `change` raises
        """
        ...

    async def rewrite(self, record: Record, body: dict[str, Any]) -> bool:
        """Put another body into a version, if it is the newest and has not changed since it was read. No other
        version is made and nothing of the old body stays: for secrets that are sealed anew.
        """
        ...

    async def archive(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        change: Callable[[Record], dict[str, Any]] | None = None,
    ) -> Record:
        """One way; again: the same answer. `change` gives its last body, which takes the newest one's place in
        the same commit: nothing stays of what it leaves out. :raises NotFound:
        """
        ...

    async def delete(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        *,
        expected: int | None = None,
        force: bool = False,
    ) -> None:
        """Remove it with all versions; a task with its runs.

        :raises NotFound: :raises Conflict: the version is not `expected`; without `force`: it is an agent or an
            environment that a session uses, or a workspace with sessions that are not archived
        """
        ...
