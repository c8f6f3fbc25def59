"""The messages harness with a real egress and a sandbox on demand for each session: what the runner gives it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from msgspec.structs import replace
from pydantic import SecretStr

from roost.core.sandbox.on_demand import Open, on_demand
from roost.egress.host import HostEgress, serving
from roost.egress.options import EgressOptions, ModelUpstream, anthropic
from roost.harnesses.messages import MessagesHarness
from roost.ports.egress import Account, Grant, Networking, Origin, RefusalReport
from roost.ports.harness import Brief, Conversation
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.host import HostProvider

KEY = "sk-not-for-the-log"


def egress_options(directory: Path, url: str) -> EgressOptions:
    """An egress to the model at this address, which everybody on this machine can be reached by."""
    return EgressOptions(
        directory=directory,
        upstreams=[ModelUpstream.default(anthropic(url, SecretStr(KEY)))],
        ports=frozenset({urlsplit(url).port or 80}),
        allow_networks=[IPv4Network("127.0.0.0/8")],
    )


class MessagesSession:
    """`ports.harness.Harness`: a session that was not resumed gets a new home. `opened` counts sandboxes. It has an
    egress to itself, unless it is given one that it shares with others, as in a server.
    """

    def __init__(
        self,
        url: str,
        root: Path,
        *,
        web_search: bool = False,
        window: int | None = None,
        egress: HostEgress | None = None,
        **settings: Any,
    ) -> None:
        self._upstream = {"web_search": web_search, "window": window}
        self._egress = egress
        self._inner = MessagesHarness(**{"retries": 3, "retry_seconds": 0.001, **settings})
        self.name = self._inner.name
        self.profile = self._inner.profile
        self.mounts = self._inner.mounts
        self.check = self._inner.check
        self.models = self._inner.models
        self.home = root
        self.opened = 0
        self.accounts: list[Account] = []
        self.sandbox: Sandbox | None = None
        self._url = url
        self._root = root
        self._numbers = count(1)
        self._provider = HostProvider(use_cgroups=False)

    @property
    def workspace(self) -> Path:
        """Where the session's files are."""
        return self.home / "work"

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        number = next(self._numbers)
        if not brief.start.resumes:
            self.home = self._root / f"home-{number}"
            self.workspace.mkdir(parents=True)
        servers = [
            Origin(url=each["url"], protocol="mcp", restricted=True, name=each["name"])
            for each in brief.session.spec.agent.get("mcp_servers") or ()
        ]
        grant = Grant(
            session_id=str(self.home),
            generation=number,
            account=self._account,
            refused=self._refused,
            model=brief.session.spec.agent["model"]["id"],
            networking=Networking(kind="unrestricted"),
            origins=servers,
        )
        plan = Plan(
            session_id=str(self.home),
            generation=number,
            home=LocalVolume(self.home),
            workspace=LocalVolume(self.workspace),
            mounts=self.mounts,
        )
        try:
            async with (
                self._served(number) as egress,
                egress.open(grant) as opened,
                on_demand(partial(self._ready, plan), anyio.Semaphore(8)) as sandbox,
                self._inner.open(
                    replace(brief, sandbox=sandbox, grant=opened, addresses=opened.addresses)
                ) as conversation,
            ):
                yield conversation
        except BaseExceptionGroup as group:  # of the egress, which a server has outside of all this
            raise group.exceptions[0] from None

    async def _ready(self, plan: Plan) -> Open:
        return partial(self._placed, plan)

    def _served(self, number: int) -> AbstractAsyncContextManager[HostEgress]:
        if self._egress is not None:
            return nullcontext(self._egress)
        options = egress_options(self._root / f"egress-{number}", self._url)
        (usual,) = options.upstreams
        upstream = replace(usual.upstream, **self._upstream)
        return serving(replace(options, upstreams=[replace(usual, upstream=upstream)]))

    @asynccontextmanager
    async def _placed(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        self.opened += 1
        async with self._provider.open(plan) as self.sandbox:
            yield self.sandbox

    async def _account(self, account: Account) -> None:
        self.accounts.append(account)

    async def _refused(self, refused: RefusalReport) -> None:
        raise AssertionError(f"nothing is refused here: {refused}")
