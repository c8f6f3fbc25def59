"""Sessions: created from an agent and an environment, updated, archived, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from msgspec.structs import replace

from roost.core.budgets import Budgets
from roost.core.catalog import Agents, Environments
from roost.core.intake import inbox
from roost.core.places import Places
from roost.domain.agent import merged, overridden, snapshot
from roost.domain.events import Draft
from roost.domain.ids import mint
from roost.domain.session import MountScope, Session, Spec, Status, TrustLevel
from roost.errors import (
    BudgetRefused,
    EnvironmentArchived,
    Forbidden,
    InvalidRequest,
    NotFound,
    SandboxUnavailable,
    SessionBusy,
    SessionClosed,
)
from roost.ports.bell import WORK, Bell
from roost.ports.harness import Harness
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.sessions import SessionQuery, Sessions

RESERVED: Final = "roost."
"""Metadata keys that begin so are for this server: they say what the API has no field for."""

_RANK: dict[TrustLevel, int] = {"sandboxed": 0, "vault": 1, "full": 2}
_OPTIONS = ("trust_level", "workspace", "mount_scope", "harness")
_CHOICES = {"trust_level": get_args(TrustLevel), "mount_scope": get_args(MountScope)}


class Lifecycle:
    """What happens to a session as a whole; what happens inside it is in its log."""

    def __init__(
        self,
        sessions: Sessions,
        agents: Agents,
        environments: Environments,
        bell: Bell,
        *,
        harnesses: Mapping[str, Harness],
        default_harness: str,
        max_sessions: int,
        places: Places | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self._sessions = sessions
        self._agents = agents
        self._environments = environments
        self._bell = bell
        self._harnesses = harnesses
        self._default_harness = default_harness
        self._max_sessions = max_sessions
        self._places = places
        self._budgets = budgets or Budgets()

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
            return made
        _refuse_unbuilt(params)
        options = self._options(caller, params)
        await self._check_place(options)
        agent = await self._agent(caller.tenant, params["agent"])
        await self._check_environment(caller.tenant, params["environment_id"])
        spec = Spec(
            agent=agent,
            environment_id=params["environment_id"],
            title=params.get("title"),
            metadata=dict(params.get("metadata") or {}),
            budget=self._budget(params.get("budget"), agent, options),
            **options,
        )
        own = caller.limits.max_sessions
        session = await self._sessions.create(
            caller.tenant,
            mint("sesn"),
            spec,
            drafts,
            receipt=receipt,
            max_sessions=(self._max_sessions if own is None else own) or None,
        )
        self._bell.ring(session.id)
        if drafts:
            self._bell.ring(WORK)
        return session

    async def get(self, tenant: str, session_id: str) -> Session:
        """:raises NotFound: absent, or another tenant's"""
        try:
            return await self._sessions.get(tenant, session_id)
        except NotFound:
            raise NotFound(f"session {session_id} was not found") from None

    async def page(self, query: SessionQuery) -> list[Session]:
        """A page of sessions, in the order asked for."""
        return await self._sessions.page(query)

    async def update(self, tenant: str, session_id: str, params: Mapping[str, Any]) -> Session:
        """Change title, metadata, tools or MCP servers, and say so in the log.

        :raises NotFound: :raises SessionClosed: :raises SessionBusy: tools change only at rest
        :raises InvalidRequest: naming the field
        """
        if "vault_ids" in params:
            raise InvalidRequest("vault_ids: cannot be changed after the session was created")
        await self.get(tenant, session_id)
        session = await self._sessions.revise(
            tenant, session_id, lambda before: _revision(before, params, self._budgets)
        )
        self._bell.ring(session_id)
        return session

    async def archive(self, tenant: str, session_id: str) -> Session:
        """End it for good; it stays readable. :raises NotFound: :raises SessionBusy: it runs"""
        await self.get(tenant, session_id)
        session = await self._sessions.archive(tenant, session_id)
        self._bell.ring(session_id)
        self._bell.ring(inbox(session_id))  # an agent that is kept warm for it can go
        return session

    async def delete(self, tenant: str, session_id: str) -> None:
        """Remove it and its log. :raises NotFound: :raises SessionBusy: it runs"""
        await self.get(tenant, session_id)
        await self._sessions.delete(tenant, session_id)
        self._bell.ring(session_id)  # its followers look, find it gone, and say so
        self._bell.ring(inbox(session_id))

    def _options(self, caller: Key, params: Mapping[str, Any]) -> dict[str, Any]:
        options = {"harness": self._default_harness, **_options_of(params)}
        if options.get("workspace") is not None:
            raise InvalidRequest(
                "workspace: named workspaces are not served; each session has its own",
                hint="Omit it, or send null.",
            )
        if options["harness"] not in self._harnesses:
            known = ", ".join(sorted(self._harnesses))
            raise InvalidRequest(
                f"harness: {options['harness']!r} is not available here", hint=f"There is: {known}."
            )
        asked: TrustLevel = options.get("trust_level", "sandboxed")
        if not may_ask_for(caller, asked):
            raise Forbidden(
                f"trust_level: this key may ask for {caller.trust_ceiling!r} at most, not {asked!r}"
            )
        return options

    def _budget(
        self, given: dict[str, Any] | None, agent: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Budgets are kept on the way out of a sandbox: an agent without one cannot have any."""
        budget = self._budgets.new(given, agent["model"]["id"])
        if budget is not None and self._harnesses[options["harness"]].mounts is None:
            raise BudgetRefused(
                f"budget: the requests of {options['harness']!r} agents are not counted",
                hint="Ask for another `harness`.",
            )
        return budget

    async def _check_place(self, options: Mapping[str, Any]) -> None:
        """A session that needs a sandbox is made where there are sandboxes, or not at all."""
        if self._harnesses[options["harness"]].mounts is None:
            return
        for name, only in (("trust_level", "sandboxed"), ("mount_scope", "workspace")):
            if options.get(name, only) != only:
                raise InvalidRequest(
                    f"{name}: {options[name]!r} is not served for {options['harness']!r} agents",
                    hint=f"Omit it: {only!r} is what they get.",
                )
        if self._places is None:
            raise SandboxUnavailable("this server has no sandboxes")
        await self._places.check()

    async def _agent(self, tenant: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
        reference: Mapping[str, Any] = {"id": given} if isinstance(given, str) else given
        record = await self._agents.get(tenant, reference["id"], reference.get("version"))
        if record.archived_at is not None:
            raise InvalidRequest(f"agent: agent {record.id} is archived")
        overrides = await self._agents.pinned(tenant, reference, "agent.")
        return overridden(snapshot(record.id, record.version, record.body), overrides)

    async def _check_environment(self, tenant: str, environment_id: str) -> None:
        record = await self._environments.get(tenant, environment_id)
        if record.archived_at is not None:
            raise EnvironmentArchived(f"environment_id: environment {environment_id} is archived")
        if record.body["config"]["type"] == "self_hosted":
            raise InvalidRequest(
                f"environment_id: environment {environment_id} is self-hosted; sessions on "
                "self-hosted environments are not served",
                hint="Create an environment with a `cloud` config: it runs on this server.",
            )


def may_ask_for(key: Key, trust_level: TrustLevel) -> bool:
    """Whether a key reaches a trust level."""
    return _RANK[trust_level] <= _RANK[key.trust_ceiling]


def _refuse_unbuilt(params: Mapping[str, Any]) -> None:
    if params.get("vault_ids"):
        raise InvalidRequest("vault_ids: credential vaults are not served")
    if params.get("resources"):
        raise InvalidRequest("resources: session resources are not served")


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


def _revision(
    session: Session, params: Mapping[str, Any], budgets: Budgets
) -> tuple[Spec, list[Draft]]:
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
    return after, [Draft.of("session.updated", **changed)] if noted else []


def _patched(metadata: dict[str, str], patch: Mapping[str, str | None] | None) -> dict[str, str]:
    for key, value in (patch or {}).items():
        if key.startswith(RESERVED) and metadata.get(key) != value:
            raise InvalidRequest(f"metadata.{key}: fixed when the session was created")
    return merged(metadata, patch)


def _retooled(session: Session, given: Mapping[str, Any]) -> dict[str, Any]:
    if session.state.status is not Status.IDLE:
        raise SessionBusy("agent: tools and MCP servers change only while the session is idle")
    return overridden(session.spec.agent, given)
