"""From a session to what its sandbox is and may reach, without a disk or a store."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.node import AGENT, TENANT

from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.loopback import FORWARDER
from roost.core.sandbox.planner import OnAccount, SandboxInputs, SandboxPlanner, SandboxPolicy
from roost.domain.budget import Budget, Spent
from roost.domain.session import Lease, Session, Spec, State
from roost.domain.usage import Usage
from roost.ports.egress import Account, Grant, Networking, OpenGrant
from roost.ports.harness import Brief, Conversation
from roost.ports.sandbox_provider import (
    Endpoint,
    LocalVolume,
    Mount,
    Plan,
    SandboxLimits,
    UnixAddress,
)
from roost.sandboxes.volumes import VaultVolumes
from roost.testing.fake_harness import IN_SANDBOX, FakeHarness
from roost.testing.null_parts import CollectedReports

VAULT = Path("/nowhere/vault")
LEASE = Lease("sesn_1", "node_1", 7)
ENDPOINT = Endpoint(address=UnixAddress(Path("/run/model.sock")), socket="/run/roost/model.sock")
OPENED = OpenGrant(endpoints=[ENDPOINT], environ={"HTTP_PROXY": "here", "HOME": "of egress"})


class Agent(FakeHarness):
    """An agent that keeps things in its home, and speaks another API than most."""

    profile = replace(IN_SANDBOX, own_directories=frozenset({".own"}), upstream="openai")

    def open(self, brief: Brief) -> AbstractAsyncContextManager[Conversation]:
        raise NotImplementedError


def planner(on_account: OnAccount = lambda account: None, **policy: Any) -> SandboxPlanner:
    given = SandboxPolicy(forwarder=Path("/forward"), person=Path("/home/me"), **policy)
    volumes = VaultVolumes(VAULT, Path("/nowhere/data"))
    return SandboxPlanner(volumes, given, Budgets(Budget(max_tokens=9)), on_account)


def session(*, model: str = "m", **fields: Any) -> Session:
    agent = AGENT | {"model": {"id": model}}
    spec = Spec(agent=agent, environment_id="env_1", **fields)
    state = State(thread_id="sthr_1", agent_name="helper", spent=Spent(requests=2))
    times = {"created_at": 0, "updated_at": 0}
    return Session(id="sesn_1", tenant=TENANT, spec=spec, state=state, **times)


def plan_of(session: Session, inputs: SandboxInputs | None = None, **policy: Any) -> Plan:
    return planner(**policy).plan(LEASE, session, Agent(), inputs or SandboxInputs(), OPENED)


def grant_of(session: Session, inputs: SandboxInputs | None = None, **policy: Any) -> Grant:
    reports = CollectedReports()
    given = inputs or SandboxInputs()
    return planner(**policy).grant(LEASE, session, Agent(), given, reports)


def test_a_sandboxed_session_works_in_its_home_and_sees_nothing_of_its_agents_own_there():
    plan = plan_of(session())
    assert plan.home == plan.workspace == LocalVolume(VAULT / ".workspaces" / "sesn_1")
    assert plan.hidden == [".own"]
    assert (plan.session_id, plan.generation) == ("sesn_1", 7)
    assert plan.endpoints == [ENDPOINT]
    assert plan.mounts == [Mount(Path("/forward"), FORWARDER)]


@pytest.mark.parametrize("level", ["sandboxed", "vault", "full"])
def test_a_shared_workspace_is_where_a_session_works_whatever_its_trust(level: str):
    plan = plan_of(session(trust_level=level, workspace="wksp_1"))
    assert plan.workspace == LocalVolume(VAULT / ".workspaces" / "wksp_1")
    assert plan.home == LocalVolume(VAULT / ".workspaces" / "sesn_1")
    assert plan.hidden == ()


def test_only_full_trust_is_at_home_where_the_person_is():
    homes = {level: plan_of(session(trust_level=level)) for level in ("sandboxed", "vault", "full")}
    assert {level: plan.environ["HOME"] for level, plan in homes.items()} == {
        "sandboxed": "of egress",
        "vault": "of egress",
        "full": "/home/me",
    }
    assert [plan.workspace.path == VAULT for plan in homes.values()] == [False, True, True]


def test_an_agents_tools_have_bounds_where_nothing_else_keeps_them_in():
    bounds = planner().confinement(session(trust_level="vault"))
    assert bounds is not None
    assert (bounds.root, bounds.hidden) == (VAULT, [VAULT / ".workspaces"])
    assert bounds.home == VAULT / ".workspaces" / "sesn_1"
    shared = planner().confinement(session(trust_level="vault", workspace="wksp_1"))
    assert shared is not None
    assert (shared.root, shared.hidden) == (VAULT / ".workspaces" / "wksp_1", [])
    assert planner().confinement(session()) is None
    assert planner().confinement(session(trust_level="full")) is None


@pytest.mark.parametrize(
    ("usual", "quota", "disk"),
    [(10, None, 10), (2**40, 1, 256 * 1024**2 + 1), (0, 1, 256 * 1024**2 + 1), (10, 1, 10)],
)
def test_a_workspaces_quota_limits_the_disk_with_room_for_the_home(
    usual: int, quota: int | None, disk: int
):
    limits = SandboxLimits(disk_bytes=usual, processes=3)
    planned = plan_of(session(), SandboxInputs(quota_bytes=quota), limits=limits).limits
    assert (planned.disk_bytes, planned.processes) == (disk, 3)


def test_what_was_looked_up_is_mounted_and_granted():
    mount = Mount(Path("/skill"), "/run/skill")
    free = Networking(kind="unrestricted")
    inputs = SandboxInputs(mounts=[mount], networking=free)
    assert plan_of(session(), inputs).mounts[0] == mount
    assert grant_of(session(), inputs).networking == free


def test_a_grant_has_the_leases_generation_and_what_was_spent_before():
    grant = grant_of(session())
    assert (grant.session_id, grant.generation) == ("sesn_1", 7)
    assert (grant.budget, grant.spent.requests) == (Budget(max_tokens=9), 2)


def test_a_session_may_use_its_agents_model_and_those_of_everybody():
    assert grant_of(session(model="opus")).models is None
    assert grant_of(session(model="opus"), models=["haiku"]).models == ["haiku", "opus"]


def test_the_harness_says_which_api_its_agent_speaks():
    assert grant_of(session()).api == "openai"


async def test_a_request_without_a_list_price_costs_tokens_only():
    account = Account(session_id="s", model="m", usage=Usage(3, 4), status=200, seconds=1)
    told: list[Account] = []
    reports = CollectedReports()
    grant = planner(told.append).grant(LEASE, session(), Agent(), SandboxInputs(), reports)
    await grant.account(account)
    assert told == [account]
    [spent] = reports.told
    assert isinstance(spent, Spent)
    assert (spent.requests, spent.tokens, spent.cost) == (1, 7, 0)
