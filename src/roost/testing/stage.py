"""What the stores' contract kits need on stage: a store, sessions in it, somebody who runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roost.domain.events import Draft, Entry, Micros, Moment
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Pending, Session, Spec, State
from roost.ids import mint
from roost.ports.drafts import new_draft, new_event_id
from roost.ports.log import Accepted
from roost.ports.store import Store

TENANT = "tenant_1"
NODE = "node_1"
END_TURN = {"type": "end_turn"}


def spec(environment_id: str = "env_1", agent_id: str = "agent_1", **fields: Any) -> Spec:
    """A spec, valid in every field."""
    agent = {"id": agent_id, "version": 1, "name": "helper"}
    return Spec(agent=agent, environment_id=environment_id, **fields)


def at(now: Micros) -> Moment:
    """A moment, for the rules of the ledger."""
    return Moment(now, new_event_id)


def message(text: str = "hello") -> Draft:
    """What a person says."""
    return new_draft("user.message", content=[{"type": "text", "text": text}])


def answer(text: str = "hello yourself") -> Draft:
    """What the agent says."""
    return new_draft("agent.message", content=[{"type": "text", "text": text}])


def allow(tool_use_id: str) -> Draft:
    """A person's permission for a call."""
    return new_draft("user.tool_confirmation", tool_use_id=tool_use_id, result="allow")


def numbers(entries: Sequence[Entry]) -> list[int]:
    """The seqs of entries, in order."""
    return [entry.seq for entry in entries]


def types(entries: Sequence[Entry]) -> list[str]:
    """The types of entries, in order."""
    return [entry.type for entry in entries]


class Stage:
    """Short ways to the situations that the tests are about."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log = store.log

    async def session(self, *drafts: Draft, tenant: str = TENANT, **fields: Any) -> str:
        """A session's id; it is idle unless it was told something."""
        made = await self.store.sessions.create(tenant, mint("sesn"), spec(**fields), drafts)
        return made.id

    async def look(self, session_id: str) -> Session:
        """The session as it stands."""
        return await self.store.sessions.find(session_id)

    async def state(self, session_id: str) -> State:
        """Where the session stands."""
        return (await self.look(session_id)).state

    async def say(self, session_id: str, *texts: str) -> Accepted:
        """A person says something."""
        return await self.log.accept(session_id, [message(text) for text in texts or ("hello",)])

    async def all(self, session_id: str) -> list[Entry]:
        """The whole log of a session."""
        return await self.log.read(session_id, 0, 1_000_000)

    async def claim(self, node: str = NODE, limit: int = 1000) -> list[Lease]:
        """What a node gets that lives and has room."""
        await self.log.renew(node, 60)
        return await self.log.claim(node, limit)

    async def running(self, *drafts: Draft, node: str = NODE) -> Lease:
        """A session that was told something, and runs at the node. Nothing else may wait."""
        session_id = await self.session(*(drafts or (message(),)))
        [lease] = await self.claim(node)
        assert lease.session_id == session_id
        return lease

    async def take_all(self, lease: Lease) -> list[Entry]:
        """The runner hands what waits to the agent."""
        waiting = await self.log.inputs(lease.session_id)
        return await self.log.append(lease, Batch(takes=waiting, turn=TurnMark.BEGIN))

    async def finish(self, lease: Lease, **batch: Any) -> list[Entry] | None:
        """The runner goes idle, having seen everything."""
        head = (await self.state(lease.session_id)).head
        return await self.log.finish(lease, head, Batch(**batch), END_TURN)

    async def idle(self) -> str:
        """A session that has had a turn, and rests."""
        lease = await self.running()
        await self.take_all(lease)
        assert await self.finish(lease)
        return lease.session_id

    async def asking(self, *tool_uses: str) -> str:
        """A session that rests until somebody allows these tools."""
        lease = await self.running()
        await self.take_all(lease)
        asked = [Draft.of("agent.tool_use", id, name="bash") for id in tool_uses]
        blocks = [Pending(id, "confirmation") for id in tool_uses]
        assert await self.finish(lease, drafts=asked, blocks=blocks)
        return lease.session_id
