"""What a session brings into its sandbox: the network its environment allows, skills, files, repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.core.files.resources import Resources
from roost.core.records.skills import Skills
from roost.core.sandbox.networking import networking_of
from roost.core.sandbox.planner import SandboxInputs
from roost.core.sandbox.reports import OnLack
from roost.core.sandbox.variables import SessionVariable, SessionVariables
from roost.core.vaults.llm import model_origin
from roost.core.vaults.mcp import McpCredentials
from roost.core.vaults.secrets import VaultSecrets
from roost.domain.session import Session
from roost.errors import NotFound, RoostError
from roost.ports.catalog import Catalog
from roost.ports.drafts import trouble
from roost.ports.egress import Networking, Origin
from roost.ports.harness import SkillNote
from roost.ports.sandbox_provider import Mount


class SessionBelongings:
    """Looks up what is a session's own, each time its sandbox is opened."""

    def __init__(
        self,
        catalog: Catalog,
        skills: Skills,
        resources: Resources,
        secrets: VaultSecrets,
        mcp: McpCredentials,
    ) -> None:
        self._catalog = catalog
        self._skills = skills
        self._resources = resources
        self._secrets = secrets
        self._variables = SessionVariables(secrets)
        self._mcp = mcp

    async def environment(self, session: Session) -> Mapping[str, Any]:
        """What its environment is; nothing if that is gone."""
        try:
            found = await self._catalog.get(
                "environment", session.tenant, session.spec.environment_id
            )
        except NotFound:
            return {}
        return found.body

    async def inputs(self, session: Session, api: str, say: OnLack) -> SandboxInputs:
        """What has to be known of it before its grant can be planned; its agent asks its model by this API.

        :raises RoostError: its network cannot be what its environment says, or a credential cannot be had
        """
        return SandboxInputs(
            networking=await self.networking(session),
            origins=await self.origins(session, api),
            variables=await self.variables(session, say),
        )

    async def networking(self, session: Session) -> Networking:
        """What its environment says. An environment that is gone allows nothing.

        :raises RoostError: it sets limits, and the session is not isolated
        """
        found = await self.environment(session)
        if not found:
            return Networking()
        servers = session.spec.agent.get("mcp_servers") or ()
        allowed = networking_of(found.get("config") or {}, servers)
        if session.spec.trust_level == "sandboxed":
            return allowed
        if allowed.kind == "limited":
            raise RoostError(  # no sandbox is missing: there is nothing to wait for
                "the environment's networking is now limited, which cannot be enforced on the host",
                hint="Make it unrestricted again; this session cannot become sandboxed.",
            )
        return Networking()  # the host's own network needs no proxy

    async def origins(self, session: Session, api: str) -> list[Origin]:
        """Servers that it may use with a credential: its repositories, its agent's MCP servers, and its own server
        of models, which its agent asks by this API.

        Without isolation its agent connects to an MCP server by itself, unless the vaults have a token for it.

        :raises CannotUnseal: a repository's token cannot be had
        :raises ModelKeyMissing: its LLM vault is gone
        """
        model = await model_origin(self._catalog, self._secrets, session, api)
        return [
            *await self._resources.origins(session),
            *await self._servers(session),
            *([] if model is None else [model]),
        ]

    async def _servers(self, session: Session) -> list[Origin]:
        is_isolated = session.spec.trust_level == "sandboxed"
        return [
            Origin(
                url=server["url"],
                protocol="mcp",
                credential=self._mcp.of(session, server["url"]),
                restricted=is_isolated,  # on the host its agent could go anywhere by itself
                name=server["name"],
            )
            for server in session.spec.agent.get("mcp_servers") or ()
            if is_isolated or await self._secrets.mcp(session, server["url"]) is not None
        ]

    async def skills(self, session: Session) -> list[SkillNote]:
        """Its agent's skills, as a model is told of them."""
        return await self._skills.notes(session)

    async def variables(self, session: Session, say: OnLack) -> list[SessionVariable]:
        """Secrets that its programs use by the names of variables; `say` is told what cannot be used."""
        return await self._variables.of(session, say)

    async def mounts(self, session: Session, say: OnLack) -> list[Mount]:
        """Its skills, its files and a directory for its outputs, to be shown inside.

        What a crash kept from being taken out of that directory is taken first; `say` is told of what is left.

        :raises BlobsFailed: a file is not on this node, and cannot be fetched now
        """
        skills, _ = await self._skills.mounts(session)
        await self.keep_outputs(session, say)
        return [*skills, *await self._resources.mounts(session)]

    async def check(self, session: Session, say: OnLack) -> None:
        """See whether its skills and files still exist; `say` is told of each that does not."""
        _, gone = await self._skills.mounts(session)
        for text in [*gone, *await self._resources.gone(session)]:
            await say(trouble("resource_gone", f"{text}; the agent works without it", "retrying"))

    async def keep_outputs(self, session: Session, say: OnLack) -> None:
        """Store what its agent has put into its outputs; `say` is told of what was left out."""
        if left := await self._resources.outputs.capture(session):
            await say(trouble("outputs_left_out", left, "retrying"))

    async def forget(self, session_id: str) -> None:
        """Forget a session that never was."""
        await self._resources.forget("", session_id)
