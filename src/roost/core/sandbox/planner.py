"""What a session's sandbox is to be, and what it may reach: from the session to a `Grant` and a `Plan`.

Nothing here touches a disk, a store or a clock: what has to be looked up first is in `SandboxInputs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.loopback import FORWARDER
from roost.core.sandbox.reports import SandboxReports
from roost.core.sandbox.variables import SessionVariable
from roost.domain.budget import Spent, price_of
from roost.domain.session import ON_HOST, Lease, Session, Spec
from roost.ports.egress import Account, Grant, Networking, OpenGrant, Origin
from roost.ports.harness import Confinement, Harness
from roost.ports.sandbox_provider import Mount, Plan, SandboxLimits, Volume
from roost.ports.volumes import SessionVolumes

_log = logging.getLogger(__name__)
VAULT: Final = "/vault"
"""Where a sandbox shows the vault, read-only, to a session whose mount scope has it."""

_HOME_BYTES: Final = 256 * 1024**2  # of disk, for the home beside a workspace that has a quota

OnAccount = Callable[[Account], None]


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator lets every sandbox have.

    `models` are those that every session may use besides its agent's own; None: any. `forwarder` is the
    program that `core/sandbox/loopback` starts inside. `person` is the home of whoever runs the server,
    which is where an agent with `full` trust is at home, too.
    """

    forwarder: Path
    person: Path
    models: Sequence[str] | None = None
    limits: SandboxLimits = SandboxLimits()


class SandboxSystem(msgspec.Struct, frozen=True):
    """What an environment has as its system: the operator's name for an image, and a layer of packages."""

    image: str | None = None
    layer: str | None = None


class SandboxInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked up for a session before its sandbox is planned.

    `mounts` are its agent's program, its skills and its files. `quota_bytes` is that of the workspace it
    shares, if there is one. `system` is its environment's.
    """

    networking: Networking = Networking()
    origins: Sequence[Origin] = ()
    variables: Sequence[SessionVariable] = ()
    mounts: Sequence[Mount] = ()
    quota_bytes: int | None = None
    system: SandboxSystem = SandboxSystem()


class SandboxPlanner:
    """Plans the sandboxes of all sessions. `on_account` is told of each request that went to a model."""

    def __init__(
        self,
        volumes: SessionVolumes,
        policy: SandboxPolicy,
        budgets: Budgets,
        on_account: OnAccount,
    ) -> None:
        self._volumes = volumes
        self._policy = policy
        self._budgets = budgets
        self._on_account = on_account

    def grant(
        self,
        lease: Lease,
        session: Session,
        harness: Harness,
        inputs: SandboxInputs,
        reports: SandboxReports,
    ) -> Grant:
        """What the session may reach and spend while this lease lasts."""
        return Grant(
            session_id=session.id,
            generation=lease.generation,
            account=partial(self._account, session, reports),
            refused=reports.refused,
            api=harness.profile.upstream,
            model=session.spec.agent["model"]["id"],
            model_port=harness.profile.model_port,
            models=self._models(session, harness),
            budget=self._budgets.of(session),
            raised=reports.allowed,
            spent=self._budgets.spent(session),
            prices=self._budgets.prices_for(session.spec.model_vault),
            networking=inputs.networking,
            origins=inputs.origins,
            substitutions=[each.substitution for each in inputs.variables],
            on_host=session.spec.trust_level in ON_HOST,
        )

    def plan(
        self,
        lease: Lease,
        session: Session,
        harness: Harness,
        inputs: SandboxInputs,
        opened: OpenGrant,
    ) -> Plan:
        """What the sandbox is to be, with the endpoints of its grant."""
        home, workspace = self._volumes.of(session.id), self.workspace(session)
        second = harness.profile.workspace_at
        again = [Mount(workspace.path, second, writable=True)] if second else []
        return Plan(
            session_id=session.id,
            generation=lease.generation,
            home=home,
            workspace=workspace,
            hidden=sorted(harness.profile.own_directories) if workspace == home else (),
            mounts=[
                *inputs.mounts,
                *self._vault(session.spec),
                *again,
                Mount(self._policy.forwarder, FORWARDER),
                *opened.mounts,
            ],
            certificates=opened.certificates,
            authority=opened.authority,
            endpoints=opened.endpoints,
            environ={**opened.environ, **self._environ(session), **_modules(inputs.system.layer)},
            limits=self._limits(inputs.quota_bytes),
            image=inputs.system.image,
            layer=inputs.system.layer,
        )

    def build(
        self,
        layer: str,
        volume: Volume,
        opened: OpenGrant,
        limits: SandboxLimits,
        environ: Mapping[str, str],
    ) -> Plan:
        """What the sandbox is to be in which the packages of a layer are installed: nobody's, with nothing in it."""
        return Plan(
            session_id=f"layer-{layer}",
            generation=1,
            home=volume,
            workspace=volume,
            mounts=[Mount(self._policy.forwarder, FORWARDER), *opened.mounts],
            endpoints=opened.endpoints,
            environ={**opened.environ, **environ},
            limits=limits,
        )

    def confinement(self, session: Session) -> Confinement | None:
        """What its harness has to keep the agent's tools in; None where a sandbox does, or nothing does."""
        if session.spec.trust_level != "vault":
            return None
        hidden = [] if session.spec.workspace else [self._volumes.hidden]
        return Confinement(self.workspace(session).path, self._volumes.of(session.id).path, hidden)

    def workspace(self, session: Session) -> Volume:
        """Where the session works: the workspace it shares, else its home, else the vault."""
        if session.spec.workspace is not None:
            return self._volumes.of(session.spec.workspace)
        is_apart = session.spec.trust_level == "sandboxed"
        return self._volumes.of(session.id) if is_apart else self._volumes.vault

    def _vault(self, spec: Spec) -> list[Mount]:
        is_shown = spec.mount_scope == "workspace+vault" and spec.trust_level == "sandboxed"
        return [self._volumes.vault_mount(VAULT)] if is_shown else []

    async def _account(self, session: Session, reports: SandboxReports, account: Account) -> None:
        about = {"action": "model", "session": account.session_id, "model": account.model}
        _log.info("model request: %d in %.1f s", account.status, account.seconds, extra=about)
        self._on_account(account)
        price = price_of(self._budgets.prices_for(session.spec.model_vault), account.model)
        await reports.spent(Spent.on(account.usage, price))

    def _models(self, session: Session, harness: Harness) -> list[str] | None:
        """What it may ask its model's server for: the operator's models, and those its agent needs."""
        if self._policy.models is None:
            return None
        return [*self._policy.models, *harness.models(session.spec.agent)]

    def _environ(self, session: Session) -> dict[str, str]:
        is_full = session.spec.trust_level == "full"
        return {"HOME": str(self._policy.person)} if is_full else {}

    def _limits(self, quota_bytes: int | None) -> SandboxLimits:
        """A workspace's quota is a limit on disk as well, with some room for the session's home beside it."""
        usual = self._policy.limits
        if quota_bytes is None:
            return usual
        most = quota_bytes + _HOME_BYTES
        return replace(usual, disk_bytes=min(usual.disk_bytes or most, most))


def _modules(layer: str | None) -> dict[str, str]:
    """Where Node finds the packages of a layer: it looks for none that are installed for all."""
    return {} if layer is None else {"NODE_PATH": "/usr/local/lib/node_modules"}
