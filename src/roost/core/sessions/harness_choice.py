"""Which harness a new session gets, and whether it can do what the session asks for.

The session's own word comes first, then its agent's, then its LLM vault's, then the operator's. An LLM vault's key is
for one engine: a session or an agent that names another one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from roost.domain.agent import DEFAULT_EFFORT, HARNESS
from roost.domain.events import Draft
from roost.domain.llm_vault import LlmVault
from roost.domain.session import TrustLevel
from roost.domain.upstream import Upstreams, searches_web
from roost.errors import HarnessCannot, InvalidRequest, RoostError
from roost.ports.harness import Harness
from roost.ports.harness_profile import HarnessProfile

_CANNOT: Final[Mapping[str, str]] = {
    "approvals": "cannot ask before a tool runs; `always_allow` is the only policy they can have",
    "custom_tools": "cannot call tools that a client carries out",
    "skills": "cannot use skills",
    "mcp": "cannot use MCP servers",
    "files": "cannot read documents in messages",
    "images": "cannot see images in messages",
    "subagents": "cannot start subagents",
    "effort": f"cannot be given an effort other than {DEFAULT_EFFORT!r}",
    "fork": "cannot be forked",
    "rewind": "cannot be rewound",
}
"""What agents cannot do that lack an ability, in words."""

_SEARCH: Final = "web_search"
_SEEN: Final[Mapping[str, str]] = {"image": "images", "document": "files"}


class KnownHarness(msgspec.Struct, frozen=True, kw_only=True):
    """A harness that a server knows, and whether it can be used there.

    `version` is what its `check` gave; None: it cannot be used, and `missing` says why, `hint` what to do about
    it. One whose package cannot even be imported declares nothing, so it has no `profile`.
    """

    name: str
    profile: HarnessProfile | None
    version: str | None = None
    missing: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, harness: Harness) -> KnownHarness:
        """A harness that was made, once it has looked at this machine."""
        known = cls(name=harness.name, profile=harness.profile)
        try:
            return replace(known, version=harness.check())
        except RoostError as error:
            return replace(known, missing=error.message, hint=error.hint)


class Need(msgspec.Struct, frozen=True):
    """What a session asks of its harness: the field that asks for it, and the ability that it takes."""

    field: str
    ability: str


class HarnessChoice:
    """The harnesses that this server knows, by their names; a session that names none gets `default`."""

    def __init__(
        self, known: Mapping[str, KnownHarness], default: str, upstreams: Upstreams
    ) -> None:
        self.known = known
        self.default = default
        self._upstreams = upstreams

    def chosen(
        self,
        name: str | None,
        metadata: Mapping[str, str],
        vault: LlmVault | None,
        *,
        by_workers: bool = False,
    ) -> str:
        """The name of the harness that a session gets, from its own word and its agent's metadata. If its tools are
        run `by_workers` and nobody says otherwise, it is one that can do that.

        :raises InvalidRequest: it is not here, or is not the one that its LLM vault's key is for
        """
        field = "harness" if name is not None else f"agent.metadata.{HARNESS}"
        named = name if name is not None else metadata.get(HARNESS)
        if vault is not None:
            return self._engine(named, field, vault)
        if named is None:
            able = self._for_workers() if by_workers else []
            usual = self.default if self.default in able or not able else able[0]
            return self._available(usual, "harness")
        return self._available(named, field)

    def _available(self, name: str, field: str) -> str:
        known = self.known.get(name)
        if known is not None and known.version is not None:
            return name
        why = "" if known is None else f": {known.missing}"
        advice = "" if known is None or not known.hint else f"{known.hint} "
        raise InvalidRequest(
            f"{field}: {name!r} is not available here{why}",
            hint=f"{advice}There is: {', '.join(sorted(self._usable()))}.",
        )

    def _engine(self, named: str | None, field: str, vault: LlmVault) -> str:
        """The harness of an LLM vault. Its key is put on by the egress, so its requests have to go that way."""
        engine = vault.engine
        if named is not None and named != engine:
            raise InvalidRequest(
                f"{field}: {named!r} is not the engine of the LLM vault, {engine!r}",
                hint=f"Name {engine!r} as the session's `harness`, or another vault.",
            )
        able = self._able("budget")
        if engine not in able:
            what = "cannot use a vault's key" if engine in self._usable() else "is not available"
            raise InvalidRequest(
                f"vault_ids: the engine {engine!r} of the LLM vault {what} here",
                hint=f"There is: {', '.join(able) or 'none'}.",
            )
        return engine

    def _usable(self) -> dict[str, HarnessProfile]:
        return {
            name: each.profile
            for name, each in self.known.items()
            if each.version is not None and each.profile is not None
        }

    def _able(self, ability: str) -> list[str]:
        """The harnesses here that have an ability."""
        usable = self._usable().items()
        return sorted(name for name, profile in usable if getattr(profile.abilities, ability))

    def profile(self, name: str) -> HarnessProfile:
        """What a harness that was chosen declares."""
        return self._usable()[name]

    def declared(self, name: str) -> HarnessProfile | None:
        """What the harness of any session declares; None if nobody here knows it: its package may be gone."""
        known = self.known.get(name)
        return None if known is None else known.profile

    def check_model(self, name: str, agent: Mapping[str, Any]) -> None:
        """Refuse a model that no server serves by the API that the harness speaks. :raises ModelNotServed:"""
        if upstream := self.profile(name).upstream:
            self._upstreams.check(agent["model"]["id"], upstream)

    def check(self, name: str, *needs: Need) -> None:
        """Refuse what the agents of a harness cannot do. :raises HarnessCannot: naming the field"""
        profile = self.declared(name)
        abilities = None if profile is None else profile.abilities
        for need in needs:
            if abilities is not None and not getattr(abilities, need.ability):
                able = self._able(need.ability)
                raise HarnessCannot(
                    f"{need.field}: {name!r} agents {_CANNOT[need.ability]}",
                    hint=f"Of the harnesses here, {' and '.join(map(repr, able))} can."
                    if able
                    else "No harness here can: leave it out.",
                )

    def check_agent(self, name: str, agent: Mapping[str, Any]) -> None:
        """Refuse an agent that asks for more than its harness can do. :raises HarnessCannot: naming the field"""
        profile = self.declared(name)
        runs_tools = profile is None or profile.runs_tools
        self.check(
            name, *(need for need in _needs_of(agent) if runs_tools or need.ability != "approvals")
        )
        if profile is not None and profile.fixed_tools and not _has_every_tool(agent):
            raise HarnessCannot(
                f"agent.tools: {name!r} agents have all their tools, and none can be switched off",
                hint="Give it `agent_toolset_20260401` with every tool enabled.",
            )

    def check_trust(self, name: str, level: TrustLevel) -> None:
        """Refuse a trust level that the harness has no agents for. :raises HarnessCannot:"""
        if level != "sandboxed" and self.profile(name).only_sandboxed:
            raise HarnessCannot(
                f"trust_level: {name!r} agents run in a sandbox only, not with {level!r}"
            )

    def _for_workers(self) -> list[str]:
        return sorted(name for name, profile in self._usable().items() if profile.by_workers)

    def check_workers(self, name: str, environment_id: str) -> None:
        """Refuse a harness whose tools no worker can run. :raises HarnessCannot:"""
        if not self.profile(name).by_workers:
            able = " or ".join(map(repr, self._for_workers()))
            raise HarnessCannot(
                f"environment_id: {environment_id} is self-hosted, and {name!r} agents run on this server only",
                hint=f"Name {able} as the session's `harness`." if able else None,
            )

    def check_searches(self, name: str, agent: Mapping[str, Any], vault: LlmVault | None) -> None:
        """Refuse a web search that is enabled by its name, and that nobody would make.

        :raises HarnessCannot: naming the field
        """
        profile = self.declared(name)
        if profile is None or _SEARCH not in profile.upstream_tools:
            return
        api, model = profile.upstream, agent["model"]["id"]
        if vault is None:
            upstream = self._upstreams.of(model, api)
            searches = upstream is not None and upstream.web_search
        else:
            searches = searches_web(api, vault.url(api) or "")
        for field, config in _named(agent, _SEARCH):
            if not searches:
                raise HarnessCannot(
                    f"{field}: the model's server makes no web searches for {name!r} agents",
                    hint="Disable it, or name another `harness`; docs/models.md says which servers do.",
                )
            if config["permission_policy"]["type"] != "always_allow":
                raise HarnessCannot(
                    f"{field}.permission_policy: {name!r} agents cannot ask before a web search, which the model's "
                    "server makes; `always_allow` is the only policy that it can have"
                )

    def check_inputs(self, name: str, drafts: Sequence[Draft], at: str) -> None:
        """Refuse inputs with content that the agent could not look at. :raises HarnessCannot: naming the field"""
        profile = self.declared(name)
        if profile is None or (profile.abilities.files and profile.abilities.images):
            return
        for i, draft in enumerate(drafts):
            if not any(b'"%b"' % kind.encode() in draft.body for kind in _SEEN):
                continue
            for j, block in enumerate(msgspec.json.decode(draft.body).get("content") or ()):
                if (ability := _SEEN.get(block["type"])) is not None:
                    self.check(name, Need(f"{at}.{i}.content.{j}", ability))

    def check_vaults(self, name: str, vault_ids: Sequence[str], model_vault: str | None) -> None:
        """Refuse vaults that nothing would be taken from. :raises HarnessCannot:"""
        profile = self.profile(name)
        useful = profile.needs_sandbox or profile.abilities.mcp
        for i, vault_id in enumerate(vault_ids):
            if vault_id != model_vault and not useful:
                raise HarnessCannot(
                    f"vault_ids.{i}: {name!r} agents have no sandbox and no MCP servers, so they cannot use "
                    "credentials"
                )


def _needs_of(agent: Mapping[str, Any], at: str = "agent") -> Iterator[Need]:
    for i, tool in enumerate(agent["tools"]):
        if tool["type"] == "custom":
            yield Need(f"{at}.tools.{i}", "custom_tools")
        elif _asks(tool):
            yield Need(f"{at}.tools.{i}.permission_policy", "approvals")
    if agent["mcp_servers"]:
        yield Need(f"{at}.mcp_servers", "mcp")
    if agent["skills"]:
        yield Need(f"{at}.skills", "skills")
    if agent.get("multiagent") is not None:  # what is enabled of it: see `domain.agent`
        yield Need(f"{at}.multiagent.subagents", "subagents")
    if agent["model"]["effort"]["type"] != DEFAULT_EFFORT:
        yield Need(f"{at}.model.effort", "effort")


def _has_every_tool(agent: Mapping[str, Any]) -> bool:
    own = next((t for t in agent["tools"] if t["type"] == "agent_toolset_20260401"), None)
    return own is not None and all(c["enabled"] for c in [own["default_config"], *own["configs"]])


def _named(agent: Mapping[str, Any], tool: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where an agent enables a tool of the toolset by its name, and its config."""
    for i, toolset in enumerate(agent["tools"]):
        if toolset["type"] == "agent_toolset_20260401":
            for j, config in enumerate(toolset["configs"]):
                if config["name"] == tool and config["enabled"]:
                    yield f"agent.tools.{i}.configs.{j}", config


def _asks(toolset: Mapping[str, Any]) -> bool:
    """Whether a person may be asked before one of its tools runs."""
    configs = [toolset["default_config"], *toolset["configs"]]
    return any(c["enabled"] and c["permission_policy"]["type"] != "always_allow" for c in configs)
