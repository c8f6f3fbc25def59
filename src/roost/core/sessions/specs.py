"""What a new session is made with: its agent, environment, trust, budget and options, checked and fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from msgspec.structs import replace

from roost.core.access.permissions import check_author
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.tasks import Tasks
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.networking import networking_of
from roost.core.sessions.harness_choice import HarnessChoice, Need
from roost.core.sessions.trust import Trust
from roost.core.vaults.llm import llm_vault_among
from roost.core.vaults.vaults import Vaults
from roost.domain.agent import overridden, snapshot
from roost.domain.environment import RESERVED, defaults_of
from roost.domain.llm_vault import LlmVault
from roost.domain.session import MountScope, Spec, TrustLevel
from roost.domain.task import TOOL
from roost.errors import BudgetRefused, EnvironmentArchived, InvalidRequest
from roost.ids import conversation_id
from roost.ports.catalog import Record
from roost.ports.keys import Key

_OPTIONS = ("trust_level", "workspace", "mount_scope", "harness", "sandbox_fallback", "task_id")
_CHOICES = {"trust_level": get_args(TrustLevel), "mount_scope": get_args(MountScope)}


@dataclass(frozen=True)
class SpecRecords:
    """What a session can be made from, by its id."""

    agents: Agents
    environments: Environments
    tasks: Tasks
    vaults: Vaults


class SessionSpecs:
    """Makes the specs of new sessions."""

    def __init__(
        self,
        records: SpecRecords,
        workspaces: NamedWorkspaces,
        budgets: Budgets,
        trust: Trust,
        choice: HarnessChoice,
    ) -> None:
        self.trust = trust
        self.choice = choice
        self._records = records
        self._workspaces = workspaces
        self._budgets = budgets

    async def of(self, caller: Key, params: Mapping[str, Any]) -> Spec:
        """What a session is made with that asks for this.

        :raises InvalidRequest: naming the field :raises NotFound: the agent or the environment
        :raises HarnessCannot: naming what its harness cannot do
        :raises Forbidden: more trust than the key may ask for
        :raises SandboxUnavailable: it needs a sandbox, and there is none to be had
        """
        vault_ids = list(params.get("vault_ids") or ())
        vaults = await self._records.vaults.given(caller, vault_ids)
        model_vault, llm_vault = llm_vault_among(vaults)
        record, agent = await self._agent(caller.tenant, params["agent"])
        environment = await self._environment(caller.tenant, params["environment_id"])
        self_hosted = environment.body["config"]["type"] == "self_hosted"
        options = self._options(params, record.body["metadata"], llm_vault, by_workers=self_hosted)
        asked = await self._workspaces.joined(caller, options)
        harness = asked["harness"]
        if llm_vault is None:  # what a server of its own has, only that server knows
            self.choice.check_model(harness, agent)
        self.choice.check_agent(harness, agent)
        self.choice.check_searches(harness, agent, llm_vault)
        self.choice.check_vaults(harness, vault_ids, model_vault)
        made_from = {"agent": record, "environment_id": environment, **vaults}
        if "task_id" in asked:
            self.choice.check(harness, Need("task_id", "custom_tools"))
            made_from["task_id"] = await self._records.tasks.seen(caller, asked["task_id"])
            agent = with_task_tool(agent)
        spec = Spec(
            agent=agent,
            environment_id=params["environment_id"],
            title=params.get("title"),
            metadata=dict(params.get("metadata") or {}),
            vault_ids=vault_ids,
            model_vault=model_vault,
            budget=self._budget(params.get("budget"), agent, asked, model_vault),
            resources=[{"type": each["type"]} for each in params.get("resources") or ()],
            created_by=caller.principal,
            deployment_id=params.get("deployment_id"),
            self_hosted=self_hosted,
            **{**defaults_of(environment.body), **asked},
        )
        if self_hosted:
            self._check_self_hosted(spec)
        self.trust.check(caller, spec)
        if self.choice.profile(spec.harness).needs_sandbox:
            spec = await self.trust.placed(spec, networking_of(environment.body["config"]))
        self.choice.check_trust(spec.harness, spec.trust_level)
        for field, written in made_from.items():
            check_author(written, spec.trust_level, field)
        await self._workspaces.check_trust(caller.tenant, spec)
        return spec

    async def copied(self, caller: Key, spec: Spec) -> Spec:
        """The spec for the caller's own copy of a session: without vaults that are not for the caller.

        Else whoever was let into a session for an hour would have its credentials for good. A copy without
        the LLM vault asks the operator's servers.
        """
        kept = await self._records.vaults.kept(caller, spec.vault_ids)
        return replace(
            spec,
            created_by=caller.principal,
            deployment_id=None,
            vault_ids=kept,
            model_vault=spec.model_vault if spec.model_vault in kept else None,
        )

    def named(self, spec: Spec, session_id: str) -> Spec:
        """With what the agent's own program will call the session, if it is a program."""
        if not self.choice.profile(spec.harness).needs_sandbox:
            return spec
        return replace(spec, sdk_session_id=conversation_id(session_id))

    def _options(
        self,
        params: Mapping[str, Any],
        of_agent: Mapping[str, str],
        vault: LlmVault | None,
        *,
        by_workers: bool,
    ) -> dict[str, Any]:
        options = _options_of(params)
        named = options.get("harness")
        chosen = self.choice.chosen(named, of_agent, vault, by_workers=by_workers)
        return {**options, "harness": chosen}

    def _check_self_hosted(self, spec: Spec) -> None:
        """Refuse what there is on this server only. :raises InvalidRequest: naming the field"""
        self.choice.check_workers(spec.harness, spec.environment_id)
        elsewhere = "its files are where its worker is, and not on this server"
        if spec.workspace is not None:
            raise InvalidRequest(
                f"workspace: the session is on a self-hosted environment: {elsewhere}"
            )
        for field, usual in (("trust_level", "sandboxed"), ("mount_scope", "workspace")):
            if getattr(spec, field) != usual:
                raise InvalidRequest(
                    f"{field}: only {usual!r} on a self-hosted environment: {elsewhere}"
                )

    def _budget(
        self,
        given: dict[str, Any] | None,
        agent: Mapping[str, Any],
        options: Mapping[str, Any],
        model_vault: str | None,
    ) -> dict[str, Any] | None:
        """Budgets are kept on the way out of a sandbox: an agent without one cannot have any."""
        budget = self._budgets.new(given, agent["model"]["id"], model_vault)
        counted = self.choice.profile(options["harness"]).abilities.budget
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
        if isinstance(given, Record):  # what it is made from stands for an agent, as a pool does
            return given, snapshot(given.id, given.version, given.body["agent"])
        reference: Mapping[str, Any] = {"id": given} if isinstance(given, str) else given
        record = await self._records.agents.get(tenant, reference["id"], reference.get("version"))
        if record.archived_at is not None:
            raise InvalidRequest(f"agent: agent {record.id} is archived")
        overrides = await self._records.agents.pinned(tenant, reference, "agent.")
        return record, overridden(snapshot(record.id, record.version, record.body), overrides)

    async def _environment(self, tenant: str, environment_id: str) -> Record:
        record = await self._records.environments.get(tenant, environment_id)
        if record.archived_at is not None:
            raise EnvironmentArchived(f"environment_id: environment {environment_id} is archived")
        return record


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


def with_task_tool(agent: dict[str, Any]) -> dict[str, Any]:
    """The agent with the tool to change its task, which no other tool may be named like."""
    if TOOL in agent["tools"]:
        return agent
    if any(tool.get("name") == TOOL["name"] for tool in agent["tools"]):
        raise InvalidRequest(f"agent: with a task, {TOOL['name']!r} is the server's own tool")
    return {**agent, "tools": [*agent["tools"], TOOL]}
