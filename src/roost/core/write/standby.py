"""From a client's message straight to an agent that is ready for it, with one commit.

A runner at rest stands by under its lease. What is accepted for its session on this node is then taken up
by the commit that accepts it, and handed to the runner as it was written: nobody has to read it again, or
to commit that a turn begins. If anything else happened meanwhile, the log does not take it up, and it
waits in the queue as any input. A server that dies after the commit leaves a turn that was begun, as one
that died after the second of two would.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from roost.domain.events import Entry
from roost.domain.ledger import Standby
from roost.domain.session import Lease, Session, State
from roost.ports.log import Accepted


class StandbyRunners:
    """The runners of this node that stand by for their session's next input."""

    def __init__(self) -> None:
        self._handoffs: dict[str, StandbyHandoff] = {}
        self._nobody = StandbyHandoff(None)

    @asynccontextmanager
    async def standing_by(
        self, lease: Lease, session: Session
    ) -> AsyncGenerator[StandbyHandoff, None]:
        """While a runner waits. Afterwards it has what was on its way to it, if anything was.

        In a shared workspace it gets nothing: there, its turn has to be let in first (`WorkspaceQueue`).
        """
        alone = session.spec.workspace is None
        standby = Standby(lease, session.state.head) if alone else None
        handoff = self._handoffs[session.id] = StandbyHandoff(standby)
        try:
            yield handoff
        finally:
            if self._handoffs.get(session.id) is handoff:  # else a newer runner stands by
                del self._handoffs[session.id]
        await handoff.settled()

    def handoff_of(self, session_id: str) -> StandbyHandoff:
        """The handoff of whoever stands by for the session. Nobody's takes nothing, whatever it is told."""
        return self._handoffs.get(session_id, self._nobody)


class StandbyHandoff:
    """What one runner is given."""

    def __init__(self, standby: Standby | None) -> None:
        self.standby = standby
        self.begun: State | None = None
        self.inputs: list[Entry] = []
        self._under_way = 0
        self._settled: anyio.Event | None = None  # made only if somebody waits for it

    def expect(self) -> None:
        """Something is on its way that may be for its runner. Its `end` follows, whatever happens."""
        self._under_way += 1

    def end(self) -> None:
        """What was expected has been taken, or will not come."""
        self._under_way -= 1
        if self._settled is not None:
            self._settled.set()

    def take(self, accepted: Accepted) -> None:
        """Keep it, if the runner's turn has begun with it."""
        if (state := accepted.begun) is not None:
            self.begun = state
            self.inputs = [entry for entry in accepted.entries if entry.seq in (state.turn or ())]

    async def settled(self) -> None:
        """Wait until a turn has begun with something that was given, or nothing is on its way any more."""
        while self.begun is None and self._under_way:
            self._settled = anyio.Event()
            await self._settled.wait()
