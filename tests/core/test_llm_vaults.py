"""The key of a session's LLM vault: as it is now, or none; never another's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.core.node import TENANT, Node, node
from tests.core.test_forks import KEY

from roost.core.vaults import secrets as door
from roost.core.vaults.llm import model_origin
from roost.core.vaults.secrets import VaultSecrets
from roost.core.vaults.vaults import Vaults
from roost.domain.session import Session, Spec, State
from roost.errors import ModelKeyMissing, NotFound
from roost.ports.egress import Origin
from roost.stores.seal import MasterKeys

LLM = {"roost.role": "llm", "roost.base_url": "https://gateway.example/x"}


@dataclass
class LlmSetup:
    node: Node
    vaults: Vaults
    secrets: VaultSecrets

    async def vault(self, **metadata: str) -> str:
        given = {"display_name": "v", "metadata": LLM | metadata}
        return (await self.vaults.create(KEY, given)).id

    async def key(self, vault_id: str, token: str) -> str:
        auth = {"type": "static_bearer", "token": token}
        return (await self.vaults.add_credential(KEY, vault_id, {"auth": auth})).id

    async def origin(self, *vault_ids: str, model_vault: str | None) -> Origin | None:
        spec = Spec(
            agent={}, environment_id="env_1", vault_ids=list(vault_ids), model_vault=model_vault
        )
        session = Session(
            id="sesn_1", tenant=TENANT, spec=spec, state=State(thread_id="t", agent_name="a"),
            created_at=0, updated_at=0,
        )  # fmt: skip
        return await model_origin(self.node.store.catalog, self.secrets, session, "anthropic")


@asynccontextmanager
async def setup(tmp_path: Path) -> AsyncGenerator[LlmSetup, None]:
    async with node(tmp_path) as here:
        seal = MasterKeys([bytes(32)])
        credentials = here.store.credentials
        vaults = Vaults(here.store.catalog, credentials, seal)
        yield LlmSetup(here, vaults, VaultSecrets(credentials, seal, b""))


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "KEPT_SECONDS", 0.0)


async def read(origin: Origin | None) -> str | None:
    assert origin is not None
    assert origin.credential is not None
    return await origin.credential.secret()


async def test_its_requests_go_to_its_address_with_the_key_as_it_is_now(tmp_path: Path):
    async with setup(tmp_path) as roost:
        vault_id = await roost.vault()
        credential_id = await roost.key(vault_id, "first")
        origin = await roost.origin(vault_id, model_vault=vault_id)
        assert origin is not None
        assert (origin.url, origin.protocol) == ("https://gateway.example/x", "anthropic")
        assert origin.restricted
        assert await read(origin) == "first"
        auth = {"type": "static_bearer", "token": "second"}
        await roost.vaults.update_credential(KEY, vault_id, credential_id, {"auth": auth})
        assert await read(origin) == "second"
        await roost.vaults.archive_credential(KEY, vault_id, credential_id)
        with pytest.raises(ModelKeyMissing, match="has no key"):
            await read(origin)
        await roost.key(vault_id, "third")
        assert await read(origin) == "third"


@pytest.mark.parametrize(
    "moved", [{"roost.base_url": "https://other.example"}, {"roost.key_header": "x-api-key"}]
)
async def test_a_key_for_another_address_is_not_sent_to_the_old_one(
    tmp_path: Path, moved: dict[str, str]
):
    async with setup(tmp_path) as roost:
        vault_id = await roost.vault()
        credential_id = await roost.key(vault_id, "for-the-old")
        origin = await roost.origin(vault_id, model_vault=vault_id)
        assert await read(origin) == "for-the-old"
        await roost.vaults.archive_credential(KEY, vault_id, credential_id)
        await roost.vaults.update(KEY, vault_id, {"metadata": moved})
        credential_id = await roost.key(vault_id, "for-the-new")
        for _ in range(2):
            with pytest.raises(ModelKeyMissing, match=r"was moved: .* next sandbox"):
                await read(origin)
        again = await roost.origin(vault_id, model_vault=vault_id)
        assert await read(again) == "for-the-new"
        auth = {"type": "static_bearer", "token": "next"}
        await roost.vaults.update_credential(KEY, vault_id, credential_id, {"auth": auth})
        assert await read(again) == "next"
        with pytest.raises(ModelKeyMissing, match="was moved"):
            await read(origin)


async def test_without_an_llm_vault_there_is_no_server_of_its_own(tmp_path: Path):
    async with setup(tmp_path) as roost:
        vault_id = await roost.vault()
        assert await roost.origin(vault_id, model_vault=None) is None


async def test_another_vaults_key_is_never_used_instead(tmp_path: Path):
    """Not even if the other one is of the same session, and the session's own has none."""
    async with setup(tmp_path) as roost:
        mine, other = await roost.vault(), await roost.vault()
        await roost.key(other, "not-for-this-session")
        with pytest.raises(ModelKeyMissing):
            await read(await roost.origin(other, mine, model_vault=mine))


async def test_another_vaults_key_does_not_hide_the_sessions_own(tmp_path: Path):
    """A vault that is named before it may have become one for models since."""
    async with setup(tmp_path) as roost:
        mine, other = await roost.vault(), await roost.vault()
        await roost.key(other, "not-for-this-session")
        await roost.key(mine, "mine")
        assert await read(await roost.origin(other, mine, model_vault=mine)) == "mine"


async def test_a_vault_that_is_archived_or_deleted_leaves_no_key(tmp_path: Path):
    async with setup(tmp_path) as roost:
        archived, deleted = await roost.vault(), await roost.vault()
        for vault_id in (archived, deleted):
            await roost.key(vault_id, "gone-soon")
        origin = await roost.origin(archived, model_vault=archived)
        assert await read(origin) == "gone-soon"
        await roost.vaults.archive(KEY, archived)
        await roost.vaults.delete(KEY, deleted)
        for opened in (origin, await roost.origin(archived, model_vault=archived)):
            with pytest.raises((ModelKeyMissing, NotFound)):
                await read(opened)
        with pytest.raises(ModelKeyMissing, match="was deleted"):
            await roost.origin(deleted, model_vault=deleted)
