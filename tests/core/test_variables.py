"""The variables of a session's vaults: placeholders, and what is said when one cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.core.test_planner import LEASE, OPENED, Agent, planner, session

from roost.core.sandbox.planner import SandboxInputs
from roost.core.sandbox.variables import SessionVariables, lacks_of
from roost.core.vaults.secrets import VaultSecrets, sealed
from roost.domain.events import Draft
from roost.domain.vault import (
    CredentialSecrets,
    EnvironmentVariable,
    InjectionLocation,
    SecretNetworking,
    VaultCredential,
)
from roost.errors import NotFound
from roost.ports.sandbox_provider import Mount
from roost.stores.seal import MasterKeys
from roost.testing.null_parts import CollectedReports

KEYS = [bytes([number] * 32) for number in range(2)]
PLACEHOLDER_KEY = bytes(range(32))
SECRET = "a-secret-value-0123456789"


class OneVault:
    """The credentials of one vault, in memory."""

    def __init__(self, *credentials: VaultCredential) -> None:
        self.credentials = {each.id: each for each in credentials}

    async def active(self, tenant: str, vault_ids: Sequence[str]) -> list[VaultCredential]:
        return list(self.credentials.values())

    async def find(self, credential_id: str) -> VaultCredential:
        try:
            return self.credentials[credential_id]
        except KeyError:
            raise NotFound(credential_id) from None


def variable(name: str = "API_KEY", key: bytes = KEYS[0], *hosts: str) -> VaultCredential:
    networking = SecretNetworking(type="unrestricted")
    if hosts:
        networking = SecretNetworking(type="limited", allowed_hosts=list(hosts))
    auth = EnvironmentVariable(
        secret_name=name,
        networking=networking,
        injection_location=InjectionLocation(header=True),
    )
    bare = VaultCredential(id=f"vcrd_{name}", tenant="t", vault_id="vlt_1", auth=auth)
    given = CredentialSecrets(value=SECRET)
    return msgspec.structs.replace(bare, sealed=sealed(MasterKeys([key]), bare, given))


def variables(vault: OneVault, *keys: bytes) -> SessionVariables:
    return SessionVariables(VaultSecrets(vault, MasterKeys(keys or KEYS[:1]), PLACEHOLDER_KEY))  # type: ignore[arg-type]


def errors(told: Sequence[Any]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each.body)["error"] for each in told if isinstance(each, Draft)]


async def test_a_placeholder_is_the_sessions_own_and_stays():
    vault, reports = OneVault(variable()), CollectedReports()
    mine = session(vault_ids=["vlt_1"])
    other = msgspec.structs.replace(mine, id="sesn_2")
    found = [
        (await variables(vault, *keys).of(each, reports.lacks))[0].substitution.placeholder
        for each, keys in ((mine, KEYS[:1]), (mine, KEYS[1:]), (other, KEYS[:1]))
    ]
    assert found[0] == found[1] != found[2]
    assert all(len(each) == len("roost_") + 32 and SECRET not in each for each in found)


async def test_a_variable_becomes_a_substitution_of_the_grant():
    vault, reports = (
        OneVault(variable("A", KEYS[0], "a.example"), variable("B")),
        CollectedReports(),
    )
    mine = session(vault_ids=["vlt_1"])
    found = await variables(vault).of(mine, reports.lacks)
    inputs = SandboxInputs(variables=found)
    grant = planner().grant(LEASE, mine, Agent(), inputs, reports)
    first, second = grant.substitutions
    assert (first.variable, first.hosts, first.header, first.body) == (
        "A",
        ["a.example"],
        True,
        False,
    )
    assert second.hosts is None and await first.secret() == SECRET
    assert SECRET not in repr(grant) and reports.told == []


async def test_a_session_has_so_many_variables_and_the_others_are_said():
    vault, reports = OneVault(*(variable(f"V{n}") for n in range(52))), CollectedReports()
    found = await variables(vault).of(session(vault_ids=["vlt_1"]), reports.lacks)
    assert [each.substitution.variable for each in found] == [f"V{n}" for n in range(50)]
    said = errors(reports.told)
    assert [each["credential_id"] for each in said] == ["vcrd_V50", "vcrd_V51"]
    assert "at most 50 variables" in said[0]["message"]


async def test_without_a_vault_nobody_is_asked():
    reports = CollectedReports()
    broken: Any = None
    assert await SessionVariables(broken).of(session(), reports.lacks) == []


async def test_a_secret_that_is_gone_is_none_and_one_that_cannot_be_read_is_said_once():
    reports = CollectedReports()
    vault = OneVault(variable("GONE"), variable("CLOSED", KEYS[1]))
    gone, closed = await variables(vault).of(session(vault_ids=["vlt_1"]), reports.lacks)
    del vault.credentials["vcrd_GONE"]
    assert await gone.substitution.secret() is None and reports.told == []
    for _ in range(2):
        assert await closed.substitution.secret() is None
    (error,) = errors(reports.told)
    assert error["code"] == "credential_unreadable" and SECRET not in str(error)


async def test_outside_of_a_sandbox_a_variable_cannot_be_used():
    reports = CollectedReports()
    free = session(vault_ids=["vlt_1"], trust_level="full")
    assert await variables(OneVault(variable())).of(free, reports.lacks) == []
    (error,) = errors(reports.told)
    assert error["type"] == "credential_host_unreachable_error" and "sandboxed" in error["message"]
    assert (error["credential_id"], error["vault_id"]) == ("vcrd_API_KEY", "vlt_1")


async def test_what_the_environment_does_not_allow_is_said():
    vault = OneVault(variable("A"), variable("B"), variable("C"))
    found = await variables(vault).of(session(vault_ids=["vlt_1"]), CollectedReports().lacks)
    opened = msgspec.structs.replace(
        OPENED, unreachable={"A": ["a.example"], "B": []}, left_out=["B"]
    )
    said = errors(lacks_of(found, opened))
    assert [each["credential_id"] for each in said] == ["vcrd_A", "vcrd_B"]
    assert "does not allow a.example" in said[0]["message"] and "another name" in said[1]["message"]


def test_what_programs_are_to_trust_is_shown_inside():
    opened = msgspec.structs.replace(
        OPENED, mounts=[Mount(Path("/x/ca.pem"), "/run/roost/ca.pem")], certificates=Path("/x/all")
    )
    plan = planner().plan(LEASE, session(), Agent(), SandboxInputs(), opened)
    assert plan.mounts[-1].target == "/run/roost/ca.pem" and plan.certificates == Path("/x/all")


async def test_a_secret_that_is_narrowed_is_not_used_until_the_next_sandbox():
    reports, first = CollectedReports(), variable("A", KEYS[0], "a.example", "b.example")
    for hosts, is_used in (
        (["a.example", "b.example", "c.example"], True),
        (None, True),
        (["a.example"], False),
    ):
        vault = OneVault(first)
        (found,) = await variables(vault).of(session(vault_ids=["vlt_1"]), reports.lacks)
        changed = variable("A", KEYS[0], *(hosts or ()))
        vault.credentials = {first.id: msgspec.structs.replace(changed, version=2)}
        for _ in range(2):
            assert await found.substitution.secret() == (SECRET if is_used else None), hosts
    (error,) = errors(reports.told)
    assert "narrowed" in error["message"] and error["credential_id"] == "vcrd_A"
