"""Sessions: created from an agent and an environment, updated, archived, deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, get_args

from msgspec.structs import replace

from roost.core.access.permissions import check_author
from roost.core.access.sessions import SessionAccess
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.files.attachments import Attachments
from roost.core.files.janitor import FileJanitor
from roost.core.files.resources import Resources
from roost.core.records.agents import Agents, Environments
from roost.core.records.tasks import Tasks
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.networking import networking_of
from roost.core.sessions.trust import Trust
from roost.core.work.prestart import Offer, Prestart
from roost.core.write.intake import inbox
from roost.domain.agent import merged, overridden, snapshot
from roost.domain.environment import RESERVED, defaults_of
from roost.domain.events import Draft, Micros
from roost.domain.ids import conversation_id, mint
from roost.domain.session import MountScope, Session, Spec, Status, TrustLevel
from roost.domain.task import TOOL
from roost.errors import (
    BudgetRefused,
    EnvironmentArchived,
    FieldNotServed,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    SessionBusy,
    SessionClosed,
)
from roost.ports.catalog import Record
from roost.ports.harness import Harness
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.notifier import WORK, Notifier
from roost.ports.sessions import Revised, SessionQuery, Sessions

_OPTIONS = ("trust_level", "workspace", "mount_scope", "harness", "sandbox_fallback", "task_id")
_COUNTED = 100  # new sessions of a tenant for which a large bound is looked at once
_CHOICES = {"trust_level": get_args(TrustLevel), "mount_scope": get_args(MountScope)}


class Lifecycle:
    """What happens to a session as a whole; what happens inside it is in its log."""

    def __init__(
        self,
        sessions: Sessions,
        agents: Agents,
        environments: Environments,
        notifier: Notifier,
        *,
        harnesses: Mapping[str, Harness],
        default_harness: str,
        max_sessions: int,
        budgets: Budgets | None = None,
        trust: Trust | None = None,
        pool: Prestart | None = None,
        tasks: Tasks | None = None,
        workspaces: NamedWorkspaces | None = None,
        keeper: FileJanitor | None = None,
        resources: Resources | None = None,
        attachments: Attachments | None = None,
    ) -> None:
        self._sessions = sessions
        self._agents = agents
        self._environments = environments
        self._notifier = notifier
        self._harnesses = harnesses
        self._default_harness = default_harness
        self._max_sessions = max_sessions
        self._uncounted: dict[str, int] = {}
        self._budgets = budgets or Budgets()
        self._trust = trust or Trust()
        self._pool = pool
        self._tasks = tasks
        self._workspaces = workspaces
        self._keeper = keeper
        self._resources = resources
        self._attachments = attachments
        self.access = SessionAccess(sessions, workspaces)

    def trust_levels(self, caller: Key) -> list[TrustLevel]:
        """The levels that a new session of the caller's may have."""
        return self._trust.offered(caller)

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
        spec = await self._spec(caller, params)
        async with (
            self._offer(caller.tenant, spec) as offer,
            self._given(caller, offer.session_id, params) as resources,
            self._attached(caller, offer.session_id, drafts),
            self.one_more(caller) as most,
        ):
            session = await self._sessions.create(
                caller.tenant,
                offer.session_id,
                replace(self._named(spec, offer.session_id), resources=resources),
                drafts,
                receipt=receipt,
                max_sessions=most,
            )
            offer.accepted = session.id == offer.session_id
        if self._pool is not None:
            self._pool.made(session)
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

    async def spec_of(self, caller: Key, params: Mapping[str, Any]) -> Spec:
        """What a session is made with that asks for this. Raises as `create` does."""
        return await self._spec(caller, params)

    async def _spec(self, caller: Key, params: Mapping[str, Any]) -> Spec:
        _refuse_unbuilt(params)
        asked = await self._joined(caller, self._options(params))
        record, agent = await self._agent(caller.tenant, params["agent"])
        environment = await self._environment(caller.tenant, params["environment_id"])
        made_from = {"agent": record, "environment_id": environment}
        if "task_id" in asked:
            made_from["task_id"] = await self._task(caller, asked["task_id"])
            agent = _with_task_tool(agent)
        spec = Spec(
            agent=agent,
            environment_id=params["environment_id"],
            title=params.get("title"),
            metadata=dict(params.get("metadata") or {}),
            budget=self._budget(params.get("budget"), agent, asked),
            resources=[{"type": each["type"]} for each in params.get("resources") or ()],
            created_by=caller.principal,
            **{**defaults_of(environment.body), **asked},
        )
        self._trust.check(caller, spec)
        if self._harnesses[spec.harness].profile.needs_sandbox:
            spec = await self._trust.placed(spec, networking_of(environment.body["config"]))
        for field, written in made_from.items():
            check_author(written, spec.trust_level, field)
        if self._workspaces is not None:
            await self._workspaces.check_trust(caller.tenant, spec)
        self._check_resources(spec, params)
        return spec

    async def _joined(self, caller: Key, asked: dict[str, Any]) -> dict[str, Any]:
        """With the workspace it names, if it names one."""
        if self._workspaces is not None:
            return await self._workspaces.joined(caller, asked)
        if asked.get("workspace") is not None:
            raise InvalidRequest("workspace: this server has no named workspaces")
        return asked

    def _check_resources(self, spec: Spec, params: Mapping[str, Any]) -> None:
        given = params.get("resources") or ()
        if given and self._resources is None:
            raise InvalidRequest("resources: this server has none to give")
        if self._resources is not None:
            self._resources.check(given, spec)

    def _named(self, spec: Spec, session_id: str) -> Spec:
        """With what the agent's own program will call the session, if it is a program."""
        if not self._harnesses[spec.harness].profile.needs_sandbox:
            return spec
        return replace(spec, sdk_session_id=conversation_id(session_id))

    def _offer(self, tenant: str, spec: Spec) -> AbstractAsyncContextManager[Offer]:
        if self._pool is None:
            return nullcontext(Offer(mint("sesn")))
        return self._pool.offer(tenant, spec)

    @asynccontextmanager
    async def given_again(
        self, caller: Key, session: Session, target: str, until: Micros
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """What a session was given, and what its messages had named by then, for another one that the body
        makes.
        """
        asked = await self._resources.again(session) if self._resources else []
        attached: AbstractAsyncContextManager[None] = nullcontext()
        if self._attachments is not None:
            attached = self._attachments.given_again(caller, session, target, until)
        async with attached, self._given(caller, target, {"resources": asked}) as resources:
            yield resources

    def _given(
        self, caller: Key, session_id: str, params: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[list[dict[str, Any]]]:
        given = params.get("resources") or []
        return (
            self._resources.given(caller, session_id, given) if self._resources else nullcontext([])
        )

    def _attached(
        self, caller: Key, session_id: str, drafts: Sequence[Draft]
    ) -> AbstractAsyncContextManager[None]:
        if self._attachments is None:
            return nullcontext()
        return self._attachments.given(caller, session_id, drafts, "initial_events")

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
            caller.tenant, session_id, lambda before: _revision(before, params, self._budgets)
        )
        self._notifier.notify(session_id)
        if session.state.status is Status.RUNNING:  # perhaps since now
            self._notifier.notify(inbox(session_id))
            self._notifier.notify(WORK)
        return session

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
        tenant = caller.tenant
        files = self._keeper.deleting(tenant, session_id) if self._keeper else nullcontext()
        async with files:
            await self._sessions.delete(tenant, session_id)
        self._notifier.notify(session_id)  # its followers look, find it gone, and say so
        self._let_go(session_id)

    def _let_go(self, session_id: str) -> None:
        """An agent that is kept for it can go."""
        self._notifier.notify(inbox(session_id))
        if self._pool is not None:
            self._pool.drop(session_id)

    def _options(self, params: Mapping[str, Any]) -> dict[str, Any]:
        options = {"harness": self._default_harness, **_options_of(params)}
        if options["harness"] not in self._harnesses:
            known = ", ".join(sorted(self._harnesses))
            raise InvalidRequest(
                f"harness: {options['harness']!r} is not available here", hint=f"There is: {known}."
            )
        return options

    def _budget(
        self, given: dict[str, Any] | None, agent: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Budgets are kept on the way out of a sandbox: an agent without one cannot have any."""
        budget = self._budgets.new(given, agent["model"]["id"])
        counted = self._harnesses[options["harness"]].profile.abilities.budget
        if budget is not None and not counted:
            raise BudgetRefused(
                f"budget: the requests of {options['harness']!r} agents are not counted",
                hint="Ask for another `harness`.",
            )
        return budget

    async def _agent(
        self, tenant: str, given: str | Mapping[str, Any]
    ) -> tuple[Record, dict[str, Any]]:
        """The agent's version, and what the session is to have of it."""
        reference: Mapping[str, Any] = {"id": given} if isinstance(given, str) else given
        record = await self._agents.get(tenant, reference["id"], reference.get("version"))
        if record.archived_at is not None:
            raise InvalidRequest(f"agent: agent {record.id} is archived")
        overrides = await self._agents.pinned(tenant, reference, "agent.")
        return record, overridden(snapshot(record.id, record.version, record.body), overrides)

    async def _task(self, caller: Key, task_id: str) -> Record:
        if self._tasks is None:
            raise InvalidRequest("task_id: this server has no tasks")
        return await self._tasks.seen(caller, task_id)

    async def _environment(self, tenant: str, environment_id: str) -> Record:
        record = await self._environments.get(tenant, environment_id)
        if record.archived_at is not None:
            raise EnvironmentArchived(f"environment_id: environment {environment_id} is archived")
        if record.body["config"]["type"] == "self_hosted":
            raise InvalidRequest(
                f"environment_id: environment {environment_id} is self-hosted; sessions on "
                "self-hosted environments are not served",
                hint="Create an environment with a `cloud` config: it runs on this server.",
            )
        return record


def _refuse_unbuilt(params: Mapping[str, Any]) -> None:
    if params.get("vault_ids"):
        raise FieldNotServed("vault_ids: credential vaults are not served")


def _options_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a session asks for beyond the API: fields of its own, or reserved metadata keys."""
    noted = {
        key.removeprefix(RESERVED): value
        for key, value in (params.get("metadata") or {}).items()
        if key.startswith(RESERVED)
    }
    for name in noted.keys() - set(_OPTIONS):
        raise InvalidRequest(f"metadata.{RESERVED}{name}: unknown; `{RESERVED}` is reserved")
    found = dict(noted)
    for name in _OPTIONS:
        given = params.get(name)
        if given is not None and noted.get(name, given) != given:
            raise InvalidRequest(f"{name}: differs from metadata.{RESERVED}{name}")
        if given is not None:
            found[name] = given
    for name, choices in _CHOICES.items():
        if name in found and found[name] not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise InvalidRequest(f"metadata.{RESERVED}{name}: Input should be {expected}")
    return found


def _revision(session: Session, params: Mapping[str, Any], budgets: Budgets) -> Revised:
    if session.state.status is Status.TERMINATED:
        raise SessionClosed("a session that is terminated cannot be updated")
    before = session.spec
    after = replace(
        before,
        title=params.get("title", before.title),
        metadata=_patched(before.metadata, params.get("metadata")),
        agent=_retooled(session, params["agent"]) if "agent" in params else before.agent,
        budget=budgets.changed(session, params),
    )
    changed = {
        field: getattr(after, field)
        for field in ("title", "metadata", "agent", "budget")
        if getattr(after, field) != getattr(before, field)
    }
    if not changed.get("metadata", True):
        del changed["metadata"]  # the event has no way to say "now empty"
    noted = after != before
    said = [Draft.of("session.updated", **changed)] if noted else []
    return Revised(after, said, budgets.raised(before.budget, replace(session, spec=after)))


def _patched(metadata: dict[str, str], patch: Mapping[str, str | None] | None) -> dict[str, str]:
    for key, value in (patch or {}).items():
        if key.startswith(RESERVED) and metadata.get(key) != value:
            raise InvalidRequest(f"metadata.{key}: fixed when the session was created")
    return merged(metadata, patch)


def _retooled(session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
    if session.state.status is not Status.IDLE:
        raise SessionBusy("agent: tools and MCP servers change only while the session is idle")
    agent = overridden(session.spec.agent, given)
    return agent if session.spec.task_id is None else _with_task_tool(agent)


def _with_task_tool(agent: dict[str, Any]) -> dict[str, Any]:
    """The agent with the tool to change its task, which no other tool may be named like."""
    if TOOL in agent["tools"]:
        return agent
    if any(tool.get("name") == TOOL["name"] for tool in agent["tools"]):
        raise InvalidRequest(f"agent: with a task, {TOOL['name']!r} is the server's own tool")
    return {**agent, "tools": [*agent["tools"], TOOL]}
