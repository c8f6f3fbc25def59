"""A log that tells, on this node, what was just committed: followers need not read it again.

Only a shortcut. Whoever is told may ignore it: the notification comes all the same, and the log has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease
from roost.ports.log import Accepted, AcceptEnded, Log, Receipt

Committed = Callable[[str, Sequence[Entry]], None]


class AnnouncedLog:
    """`ports.log.Log`, over another one."""

    def __init__(self, log: Log, committed: Committed) -> None:
        self._log = log
        self._committed = committed
        self.claim = log.claim
        self.renew = log.renew
        self.release = log.release
        self.inputs = log.inputs
        self.read = log.read
        self.page = log.page
        self.seq_of = log.seq_of

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
        """As the port says; what was accepted is announced before its sender is answered. What else it wrote, such as a status, is in the log only."""

        def told(accepted: Accepted | None) -> None:
            try:
                if accepted is not None and not accepted.repeated:
                    self._committed(session_id, accepted.entries)
            finally:
                if ended is not None:
                    ended(accepted)

        return self._log.accept(
            session_id,
            drafts,
            receipts=receipts,
            max_queued=max_queued,
            standby=standby,
            ended=told,
        )

    async def append(self, lease: Lease, batch: Batch) -> list[Entry]:
        """As the port says; then told."""
        entries = await self._log.append(lease, batch)
        self._committed(lease.session_id, entries)
        return entries

    async def finish(
        self,
        lease: Lease,
        seen: int,
        batch: Batch,
        stop_reason: dict[str, Any],
        *,
        keep: bool = False,
    ) -> list[Entry] | None:
        """As the port says; then told."""
        entries = await self._log.finish(lease, seen, batch, stop_reason, keep=keep)
        self._committed(lease.session_id, entries or ())
        return entries
