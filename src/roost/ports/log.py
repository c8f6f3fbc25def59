"""The log: where a session lives. Writers append, one runner works, readers tail.

Promises, each checked by `roost.testing.log_contract`:

* every operation is one transaction; when it returns, it is durable;
* `seq` runs 1, 2, 3 … within a session, without gaps, in commit order;
* what a change contains is decided by `roost.domain.ledger` inside the transaction;
* time is the store's; it never runs backwards within a store;
* one refused operation does not disturb others that are committed together with it;
* readers never wait for writers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from roost.domain.events import Draft, Entry, Micros
from roost.domain.ledger import Batch, Standby
from roost.domain.rewinds import Stretch
from roost.domain.session import Lease, State

ANY_SIZE: Final = 2**62
"""No bound in bytes: for readers that take a page apart at once, and know that its entries are small."""


class Receipt(msgspec.Struct, frozen=True):
    """Remembers an input by its sender's own key, so that sending it again changes nothing.

    One per draft. `fingerprint` tells a repetition from another request under the same key.
    """

    key: str
    fingerprint: str


class Accepted(msgspec.Struct, frozen=True):
    """What `accept` wrote, or had written before under the same receipts: an entry for each draft.

    `woke`: the session was idle, and this made it run. `repeated`: nothing was written now. `begun`: where
    the session stands, if a turn with what was written has begun at once.
    """

    entries: list[Entry]
    woke: bool
    repeated: bool = False
    begun: State | None = None


AcceptEnded = Callable[[Accepted | None], None]
"""Told on the event loop what was accepted, as soon as that is durable; None: nothing was."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries a listing shows.

    An event that was queued and then taken up has two entries with one id; a listing shows the
    later one only. What is `hidden` is left out, and what no client is shown (`domain.events.PRIVATE`). `as_of` makes a descending listing a picture of one
    moment: entries after it are left out, and a queued entry is shown if it was not yet taken up then.
    `None`: as of now. A page ends with the entry that brings its bodies to `most_bytes`.
    """

    types: Sequence[str] = ()
    after: int = 0
    before: int | None = None
    since: Micros | None = None
    until: Micros | None = None
    order: Literal["asc", "desc"] = "asc"
    as_of: int | None = None
    hidden: Sequence[Stretch] = ()
    limit: int = 1000
    most_bytes: int = ANY_SIZE


def is_full(page: Sequence[Entry], limit: int, most_bytes: int) -> bool:
    """Whether a page ends because of its bounds, so that more may follow."""
    return len(page) >= limit or sum(len(entry.body) for entry in page) >= most_bytes


class Log(Protocol):
    """The logs of all sessions: ordered, durable, and writable only for whoever holds the lease."""

    def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        receipts: Sequence[Receipt | None] = (),
        max_queued: int = 1000,
        standby: Standby | None = None,
        ended: AcceptEnded | None = None,
    ) -> Awaitable[Accepted]:
        """Append inputs from a client, all or none; wake the session if they make work.

        Called by `core/write/intake` for each request that carries events. With receipts (empty, or one
        slot per draft) the known ones are not written again; their first entries are returned. With
        a runner that stands by, its turn begins in the same transaction, if it can. An interrupt
        withdraws what waits in the same transaction: each input was taken up before, or never is.
        `ended` is called once, before this returns or raises, and also if the caller has given up waiting
        by then: whoever is cancelled has said it all the same.

        :raises NotFound: no such session
        :raises SessionClosed, QueueFull, InvalidRequest: see `ledger.admit`
        :raises IdempotencyMismatch: a known key with another fingerprint
        """
        ...

    async def claim(self, node: str, limit: int) -> list[Lease]:
        """Take up to `limit` sessions that have work and no living runner, oldest wait first.

        Called by `core/work/dispatch` whenever it has room and was notified, and now and then in case a
        notification was lost. Raises each one's generation: every older lease is dead from here on.

        :raises LeaseLost: the node's own lease has run out; it must `renew` first
        """
        ...

    async def renew(self, node: str, ttl: float) -> None:
        """Say that the node lives, for `ttl` seconds from the store's now.

        Called by `core/work/nodes` three times per `ttl`. Sessions whose owner's time has run out can
        be claimed by others. A `ttl` of 0 says that the node is gone.
        """
        ...

    async def append(self, lease: Lease, batch: Batch) -> list[Entry]:
        """Write what a runner did. Called by `core/work/leased_log` before anybody is shown it.

        :raises LeaseLost: the session was claimed by another since, or deleted; nothing is written
        :raises NotWaiting: an input it takes was taken up or withdrawn already; nothing is written
        """
        ...

    async def finish(
        self,
        lease: Lease,
        seen: int,
        batch: Batch,
        stop_reason: dict[str, Any],
        *,
        keep: bool = False,
    ) -> list[Entry] | None:
        """Go idle, if the log still ends at `seen`; None (and nothing written) if it does not.

        Called by `core/work/runner` when the agent rests and no input waits. `keep` holds the lease, for
        a runner that stays warm; without it the lease ends here.

        :raises LeaseLost: the session was claimed by another since, or deleted
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Hand the session back, as it stands. Called by `core/work/dispatch` after every run."""
        ...

    async def inputs(self, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
        """The inputs not yet taken up, in the order they came; of these types, or of all."""
        ...

    async def read(
        self, session_id: str, after: int, limit: int, most_bytes: int = ANY_SIZE
    ) -> list[Entry]:
        """Entries with `seq > after`, in order. Costs the same in a log of any length.

        Ends with the entry that brings their bodies to `most_bytes`, if that comes first: see `is_full`.
        No more than that is loaded.
        """
        ...

    async def seq_of(self, session_id: str, event_id: str) -> int | None:
        """Where an event stands; if it was queued and taken up, where that was. None: nowhere."""
        ...

    async def page(self, session_id: str, query: EventQuery) -> list[Entry]:
        """A listing; see `EventQuery`."""
        ...
