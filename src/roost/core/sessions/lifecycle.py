"""Sessions: created from an agent and an environment, updated, archived, deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from roost.core.access.sessions import SessionAccess
from roost.core.files.given import GivenFiles
from roost.core.sandbox.budgets import Budgets
from roost.core.sessions.specs import SessionSpecs, with_task_tool
from roost.core.work.prestart import Prestart
from roost.core.write.intake import inbox
from roost.domain.agent import merged, overridden
from roost.domain.environment import RESERVED
from roost.domain.events import Draft
from roost.domain.session import Session, Status, TrustLevel
from roost.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    SessionBusy,
    SessionClosed,
)
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.notifier import WORK, Notifier
from roost.ports.sessions import Revised, SessionQuery, Sessions

_COUNTED = 100  # new sessions of a tenant for which a large bound is looked at once


class SessionQuota:
    """How many sessions a tenant may have, unless its key says otherwise; 0: any number."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._uncounted: dict[str, int] = {}

    @asynccontextmanager
    async def one_more(self, caller: Key) -> AsyncGenerator[int | None, None]:
        """Make a session in the body, of so many that the tenant may have; None: they need no counting.

        A large bound is counted once for `_COUNTED` new sessions: counting takes as long as there are many.
        """
        own, tenant = caller.limits.max_sessions, caller.tenant
        most = (self._max_sessions if own is None else own) or None
        if most is None:
            yield None
        elif most < _COUNTED * 100:
            yield most
        elif self._uncounted.get(tenant, 0) > 0:
            self._uncounted[tenant] -= 1
            yield None
        else:
            yield most  # if the body fails, the next one is counted, too
            self._uncounted[tenant] = _COUNTED - 1


class Lifecycle:
    """What happens to a session as a whole; what happens inside it is in its log."""

    def __init__(
        self,
        sessions: Sessions,
        notifier: Notifier,
        access: SessionAccess,
        specs: SessionSpecs,
        quota: SessionQuota,
        prestart: Prestart,
        given: GivenFiles,
        budgets: Budgets,
    ) -> None:
        self.access = access
        self.specs = specs
        self.quota = quota
        self.given = given
        self._sessions = sessions
        self._notifier = notifier
        self._prestart = prestart
        self._budgets = budgets

    def trust_levels(self, caller: Key) -> list[TrustLevel]:
        """The levels that a new session of the caller's may have."""
        return self.specs.trust.offered(caller)

    async def create(
        self,
        caller: Key,
        params: Mapping[str, Any],
        drafts: Sequence[Draft] = (),
        receipt: Receipt | None = None,
    ) -> Session:
        """A session with its first inputs, in one commit; with a known receipt, the one made then.

        :raises InvalidRequest: naming the field :raises NotFound: the agent or the environment
        :raises Forbidden: more trust than the key may ask for
        :raises QuotaExceeded: the tenant has too many :raises IdempotencyMismatch: see `Sessions`
        :raises SandboxUnavailable: it needs a sandbox, and there is none to be had
        """
        if receipt and (made := await self._sessions.made(caller.tenant, receipt)):
            return await self.repeated(caller, made)
        asked = params.get("resources") or ()
        spec = await self.specs.of(caller, params)
        self.specs.choice.check_inputs(spec.harness, drafts, "initial_events")
        self.given.check(spec, asked)
        async with (
            self._prestart.offer(caller.tenant, spec) as offer,
            self.given.to_new(caller, offer.session_id, asked, drafts) as resources,
            self.quota.one_more(caller) as most,
        ):
            session = await self._sessions.create(
                caller.tenant,
                offer.session_id,
                replace(self.specs.named(spec, offer.session_id), resources=resources),
                drafts,
                receipt=receipt,
                max_sessions=most,
            )
            offer.accepted = session.id == offer.session_id
        self._prestart.made(session)
        self._notifier.notify(session.id)
        if drafts:
            self._notifier.notify(WORK)
        return session

    async def repeated(self, caller: Key, made: Session) -> Session:
        """The session that a request has made, for one who repeats it.

        :raises IdempotencyMismatch: another key has, which this one is not shown the sessions of
        """
        try:
            await self.access.check(caller, made, "see")
        except NotFound:
            raise IdempotencyMismatch() from None
        return made

    async def get(self, tenant: str, session_id: str) -> Session:
        """For the server itself; requests ask `access`. :raises NotFound: absent, or another tenant's"""
        try:
            return await self._sessions.get(tenant, session_id)
        except NotFound:
            raise NotFound(f"session {session_id} was not found") from None

    async def page(self, caller: Key, query: SessionQuery) -> list[Session]:
        """A page of those that the caller may see, in the order asked for."""
        return await self._sessions.page(replace(query, seen=await self.access.seen(caller)))

    async def update(self, caller: Key, session_id: str, params: Mapping[str, Any]) -> Session:
        """Change title, metadata, tools or MCP servers, and say so in the log.

        :raises NotFound: :raises Forbidden: it has more trust than the key may ask for
        :raises SessionClosed: :raises SessionBusy: tools change only at rest
        :raises InvalidRequest: naming the field
        """
        if "vault_ids" in params:
            raise InvalidRequest("vault_ids: cannot be changed after the session was created")
        await self.access.session(caller, session_id, "tell")
        session = await self._sessions.revise(
            caller.tenant, session_id, partial(self._revision, params=params)
        )
        self._notifier.notify(session_id)
        if session.state.status is Status.RUNNING:  # perhaps since now
            self._notifier.notify(inbox(session_id))
            self._notifier.notify(WORK)
        return session

    def _revision(self, session: Session, params: Mapping[str, Any]) -> Revised:
        if session.state.status is Status.TERMINATED:
            raise SessionClosed("a session that is terminated cannot be updated")
        before = session.spec
        after = replace(
            before,
            title=params.get("title", before.title),
            metadata=_patched(before.metadata, params.get("metadata")),
            agent=self._retooled(session, params["agent"]) if "agent" in params else before.agent,
            budget=self._budgets.changed(session, params),
        )
        changed = {
            field: getattr(after, field)
            for field in ("title", "metadata", "agent", "budget")
            if getattr(after, field) != getattr(before, field)
        }
        if not changed.get("metadata", True):
            del changed["metadata"]  # the event has no way to say "now empty"
        noted = after != before
        said = [new_draft("session.updated", **changed)] if noted else []
        raised = self._budgets.raised(before.budget, replace(session, spec=after))
        return Revised(after, said, raised)

    def _retooled(self, session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
        if session.state.status is not Status.IDLE:
            raise SessionBusy("agent: tools and MCP servers change only while the session is idle")
        agent = overridden(session.spec.agent, given)
        self.specs.choice.check_agent(session.spec.harness, agent)
        if session.spec.model_vault is None:  # else only that server knows
            self.specs.choice.check_searches(session.spec.harness, agent, None)
        return agent if session.spec.task_id is None else with_task_tool(agent)

    async def archive(self, caller: Key, session_id: str) -> Session:
        """End it for good; it stays readable.

        :raises NotFound: :raises Forbidden: see `Access` :raises SessionBusy: it runs
        """
        await self.access.session(caller, session_id, "end")
        session = await self._sessions.archive(caller.tenant, session_id)
        self._notifier.notify(session_id)
        self._let_go(session_id)
        return session

    async def delete(self, caller: Key, session_id: str) -> None:
        """Remove it, its log and its files.

        :raises NotFound: :raises Forbidden: see `Access` :raises SessionBusy: it runs
        """
        await self.access.session(caller, session_id, "end")
        await self.remove(caller.tenant, session_id)

    async def remove(self, tenant: str, session_id: str) -> None:
        """The same, for the server itself. :raises NotFound: :raises SessionBusy: it runs"""
        async with self.given.deleting(tenant, session_id):
            await self._sessions.delete(tenant, session_id)
        self._notifier.notify(session_id)  # its followers look, find it gone, and say so
        self._let_go(session_id)

    def _let_go(self, session_id: str) -> None:
        """An agent that is kept for it can go."""
        self._notifier.notify(inbox(session_id))
        self._prestart.drop(session_id)


def _patched(metadata: dict[str, str], patch: Mapping[str, str | None] | None) -> dict[str, str]:
    for key, value in (patch or {}).items():
        if key.startswith(RESERVED) and metadata.get(key) != value:
            raise InvalidRequest(f"metadata.{key}: fixed when the session was created")
    return merged(metadata, patch)
