"""A harness whose conversations have what a server gives them: a sandbox of the operator's choice, and the egress."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace
from pydantic import SecretStr

from roost.config import Settings
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.offered import OfferedSandboxes
from roost.core.sandbox.planner import SandboxPlanner, SandboxPolicy, SandboxSystem
from roost.core.sandbox.sandboxes import Sandboxes
from roost.domain.session import Lease, Session
from roost.egress.host import serving
from roost.egress.options import EgressOptions, ModelUpstream, anthropic, openai
from roost.guest import forward
from roost.ids import mint
from roost.ports.egress import Egress, Networking, Origin
from roost.ports.harness import Brief, Conversation, Harness
from roost.sandboxes.choice import chosen
from roost.sandboxes.volumes import VaultVolumes
from roost.testing.bare_sandboxes import NoBelongings, NoFiles, NoPackages
from roost.testing.null_parts import CollectedReports

KEY = "sk-not-for-the-log"


class OwnServers(NoBelongings):
    """The MCP servers of the session's agent, and every host."""

    def __init__(self) -> None:
        """Without a catalog."""

    async def networking(self, session: Session) -> Networking:
        return Networking(kind="unrestricted")

    async def origins(self, session: Session, api: str) -> list[Origin]:
        return [
            Origin(url=each["url"], protocol="mcp", restricted=True, name=each["name"])
            for each in session.spec.agent.get("mcp_servers") or ()
        ]


class ServedHarness:
    """`ports.harness.Harness`. A session that was not resumed gets an id of its own, and so a home."""

    def __init__(self, harness: Harness, url: str, root: Path, settings: Settings) -> None:
        self.name = harness.name
        self.profile = harness.profile
        self.mounts = harness.mounts
        self.check = harness.check
        self.models = harness.models
        self._harness = harness
        self._url = url
        self._root = root
        self._numbers = count(1)
        self._session_id = ""
        self._volumes = VaultVolumes(root / "vault", root)
        self._offered = OfferedSandboxes(chosen(settings), [], ["sandboxed"], self._volumes)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        number = next(self._numbers)
        if not brief.start.resumes:  # sandboxes are found by ids, also by those of other test runs
            self._session_id = mint("sesn")
        brief = replace(brief, session=replace(brief.session, id=self._session_id))
        lease, reports = Lease(self._session_id, "node", number), CollectedReports()
        system = None if self._harness.profile.on_demand else SandboxSystem()
        try:
            async with (
                serving(self._egress(number)) as egress,
                self._sandboxes(egress).open(lease, brief, self._harness, reports, system) as whole,
                self._harness.open(whole) as conversation,
            ):
                yield conversation
        except BaseExceptionGroup as group:  # of the egress, which a server has outside of all this
            raise group.exceptions[0] from None

    def _egress(self, number: int) -> EgressOptions:
        key = SecretStr(KEY)
        upstreams = [anthropic(self._url, key), openai(f"{self._url}/v1", key)]
        return EgressOptions(
            directory=self._root / f"e{number}",
            upstreams=[ModelUpstream.default(each) for each in upstreams],
            ports=frozenset({urlsplit(self._url).port or 80}),
            allow_networks=[IPv4Network("127.0.0.0/8")],
        )

    def _sandboxes(self, egress: Egress) -> Sandboxes:
        policy = SandboxPolicy(forwarder=Path(forward.__file__), person=self._root)
        return Sandboxes(
            self._offered,
            SandboxPlanner(self._volumes, policy, Budgets(), lambda account: None),
            egress,
            volumes=self._volumes,
            files=NoFiles(),
            belongings=OwnServers(),
            packages=NoPackages(),
        )
