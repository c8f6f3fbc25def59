"""A harness in the default sandbox, whose only way out is the real egress: what the runner gives it, for tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import httpx2
from msgspec.structs import replace
from pydantic import SecretStr
from tests.egress.both_sides import KEY, LOOPBACK
from tests.parts import need

from roost.core.sandbox.loopback import FORWARDER, with_ports
from roost.egress.host import HostEgress
from roost.egress.host import serving as serving_egress
from roost.egress.options import EgressOptions, ModelUpstream, anthropic
from roost.errors import SandboxUnavailable
from roost.guest import forward
from roost.ports.egress import Account, Grant, Networking, Origin, RefusalReport
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.state import default_state


class BubblewrappedHarness:
    """Opens a sandbox before each conversation. A session that was not resumed gets a new home.

    `accounts` are the requests that went to the model, with a key that is not in the sandbox.
    """

    def __init__(
        self, harness: Harness, provider: BubblewrapProvider, egress: HostEgress, root: Path
    ) -> None:
        self.name = harness.name
        self.profile = harness.profile
        self.mounts = harness.mounts
        self.check = harness.check
        self.models = harness.models
        self.home = root
        self.accounts: list[Account] = []
        self.refusals: list[RefusalReport] = []
        self._harness = harness
        self._provider = provider
        self._egress = egress
        self._root = root
        self._numbers = count(1)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        number = next(self._numbers)
        if not brief.start.resumes:
            self.home = self._root / f"home-{number}"
            self.home.mkdir()
        async with self._egress.open(self._grant(brief, number)) as opened:
            home = LocalVolume(self.home)
            plan = Plan(
                session_id=brief.session.id,
                generation=number,
                home=home,
                workspace=home,
                hidden=sorted(self.profile.own_directories),
                mounts=[*self.mounts, Mount(Path(forward.__file__), FORWARDER), *opened.mounts],
                endpoints=opened.endpoints,
                environ=opened.environ,
            )
            async with self._provider.open(plan) as sandbox:
                inside = with_ports(sandbox, plan.endpoints)
                given = replace(brief, sandbox=inside, addresses=opened.addresses)
                async with self._harness.open(given) as conversation:
                    yield conversation

    def _grant(self, brief: Brief, number: int) -> Grant:
        agent = brief.session.spec.agent
        servers = [
            Origin(url=s["url"], protocol="mcp", name=s["name"]) for s in agent["mcp_servers"]
        ]
        return Grant(
            session_id=brief.session.id,
            generation=number,
            account=self._account,
            refused=self._refused,
            api=self.profile.upstream,
            model=agent["model"]["id"],
            model_port=self.profile.model_port,
            networking=Networking(kind="unrestricted" if servers else "none"),
            origins=servers,
        )

    async def _account(self, account: Account) -> None:
        self.accounts.append(account)

    async def _refused(self, report: RefusalReport) -> None:
        self.refusals.append(report)

    @property
    def workspace(self) -> Path:
        """Where the session's files are."""
        return self.home


@asynccontextmanager
async def bubblewrapped(harness: Harness, model: str) -> AsyncGenerator[BubblewrappedHarness, None]:
    """The harness in the default sandbox, with the model at this address behind a key."""
    provider = BubblewrapProvider(data=default_state(), path=os.environ.get("PATH"))
    try:
        await provider.check()
    except SandboxUnavailable as error:
        need("bubblewrap", None, error.hint or str(error))
    with tempfile.TemporaryDirectory(prefix="roost-acp-") as name:
        root = Path(name)
        options = EgressOptions(
            directory=root / "run",
            upstreams=[ModelUpstream.default(anthropic(model, SecretStr(KEY)))],
            allow_networks=LOOPBACK,  # for MCP servers, whose ports are looked at, too
            ports=frozenset({httpx2.URL(model).port or 80}),
        )
        async with serving_egress(options) as egress:
            yield BubblewrappedHarness(harness, provider, egress, root)
