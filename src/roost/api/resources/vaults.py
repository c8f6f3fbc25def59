"""`/v1/vaults`, and their credentials. What is secret in a request is in no answer."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import ID, METADATA, PAGE_OF_100
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import (
    DEFAULT_PAGE,
    Cursor,
    cursor_in,
    cut,
    page,
    record_page,
    record_query,
)
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.core.vaults.mcp import McpValidation
from roost.core.vaults.vaults import Vaults
from roost.domain.vault import VaultCredential
from roost.ports.catalog import Record
from roost.ports.credentials import CredentialQuery

_VAULT = "beta.BetaManagedAgentsVault"
_CREDENTIAL = "beta.vaults.BetaManagedAgentsCredential"
_NAME = Field(min_length=1, max_length=255)
_WORDS = Field(min_length=1, max_length=2048)
_URL: Any = {"mcp_server_url": str}
_FIXED: Any = {"client_id": str, "token_endpoint": str, "resource": str}

RESOURCE: Final = Resource(
    bounds={
        "VaultCreateParams.display_name": _NAME,
        "VaultCreateParams.metadata": METADATA,
        "VaultUpdateParams.display_name": _NAME,
        "VaultListParams.limit": PAGE_OF_100,
        "CredentialCreateParams.display_name": _NAME,
        "CredentialCreateParams.metadata": METADATA,
        "CredentialUpdateParams.display_name": _NAME,
        "CredentialListParams.limit": PAGE_OF_100,
        "BetaManagedAgentsMCPOAuthRefreshParams.client_id": _WORDS,
        "BetaManagedAgentsMCPOAuthRefreshParams.resource": _WORDS,
        "BetaManagedAgentsMCPOAuthRefreshParams.scope": Field(max_length=2048),
        "BetaManagedAgentsMCPOAuthRefreshUpdateParams.scope": Field(max_length=2048),
        "*.vault_id": ID,
        "*.credential_id": ID,
    },
    # The first may be left out for the key of a model's API. The others cannot be changed: they are here to
    # be refused with a reason.
    fields={
        "BetaManagedAgentsStaticBearerCreateParams": _URL,
        "BetaManagedAgentsStaticBearerUpdateParams": _URL,
        "BetaManagedAgentsMCPOAuthUpdateParams": _URL,
        "BetaManagedAgentsMCPOAuthRefreshUpdateParams": _FIXED,
        "BetaManagedAgentsEnvironmentVariableUpdateParams": {"secret_name": str},
    },
)


@RESOURCE.post("vaults.create", "/v1/vaults", "beta.VaultCreateParams", reply=_VAULT)
async def create(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A new vault, without credentials."""
    return reply(_view(await vaults.create(call.key, call.body)))


@RESOURCE.get("vaults.list", "/v1/vaults", "beta.VaultListParams", reply=_VAULT, form="page")
async def list_(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """Vaults, newest first."""
    query = record_query(call.query, "vault", call.tenant)
    return reply(await record_page(lambda q: vaults.page(call.key, q), query, _view))


@RESOURCE.get("vaults.retrieve", "/v1/vaults/{vault_id}", reply=_VAULT)
async def retrieve(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A vault."""
    return reply(_view(await vaults.seen(call.key, call.params["vault_id"])))


@RESOURCE.post("vaults.update", "/v1/vaults/{vault_id}", "beta.VaultUpdateParams", reply=_VAULT)
async def update(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A vault, changed."""
    return reply(_view(await vaults.update(call.key, call.params["vault_id"], call.body)))


@RESOURCE.delete(
    "vaults.delete", "/v1/vaults/{vault_id}", reply="beta.BetaManagedAgentsDeletedVault"
)
async def delete(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """Gone with its credentials."""
    vault_id = call.params["vault_id"]
    await vaults.delete(call.key, vault_id)
    return reply({"id": vault_id, "type": "vault_deleted"})


@RESOURCE.post("vaults.archive", "/v1/vaults/{vault_id}/archive", reply=_VAULT)
async def archive(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """No new sessions with it, and its secrets are gone."""
    return reply(_view(await vaults.archive(call.key, call.params["vault_id"])))


@RESOURCE.post(
    "vaults.credentials.create",
    "/v1/vaults/{vault_id}/credentials",
    "beta.vaults.CredentialCreateParams",
    reply=_CREDENTIAL,
)
async def add_credential(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A credential more in a vault."""
    made = await vaults.add_credential(call.key, call.params["vault_id"], call.body)
    return reply(_credential_view(made))


@RESOURCE.get(
    "vaults.credentials.list",
    "/v1/vaults/{vault_id}/credentials",
    "beta.vaults.CredentialListParams",
    reply=_CREDENTIAL,
    form="page",
)
async def list_credentials(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A vault's credentials, newest first."""
    vault_id = call.params["vault_id"]
    of, limit = f"credentials {vault_id}", call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, of, "desc")
    query = CredentialQuery(
        tenant=call.tenant,
        vault_id=vault_id,
        include_archived=call.query.get("include_archived", False),
        after=None if cursor is None else str(cursor.after),
        limit=limit + 1,
    )
    found, more = cut(await vaults.credentials(call.key, query), limit)
    last = Cursor(of=of, order="desc", after=found[-1].id) if more else None
    return reply(page([_credential_view(each) for each in found], last))


@RESOURCE.get(
    "vaults.credentials.retrieve",
    "/v1/vaults/{vault_id}/credentials/{credential_id}",
    reply=_CREDENTIAL,
)
async def retrieve_credential(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A credential, without its secret."""
    return reply(_credential_view(await vaults.credential(call.key, *_which(call))))


@RESOURCE.post(
    "vaults.credentials.update",
    "/v1/vaults/{vault_id}/credentials/{credential_id}",
    "beta.vaults.CredentialUpdateParams",
    reply=_CREDENTIAL,
)
async def update_credential(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """A credential, changed: for example with another secret."""
    changed = await vaults.update_credential(call.key, *_which(call), call.body)
    return reply(_credential_view(changed))


@RESOURCE.delete(
    "vaults.credentials.delete",
    "/v1/vaults/{vault_id}/credentials/{credential_id}",
    reply="beta.vaults.BetaManagedAgentsDeletedCredential",
)
async def delete_credential(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """Gone."""
    vault_id, credential_id = _which(call)
    await vaults.delete_credential(call.key, vault_id, credential_id)
    return reply({"id": credential_id, "type": "vault_credential_deleted"})


@RESOURCE.post(
    "vaults.credentials.archive",
    "/v1/vaults/{vault_id}/credentials/{credential_id}/archive",
    reply=_CREDENTIAL,
)
async def archive_credential(call: ApiCall, vaults: Vaults) -> ASGIApp:
    """No session has it any more, and its secret is gone."""
    return reply(_credential_view(await vaults.archive_credential(call.key, *_which(call))))


@RESOURCE.post(
    "vaults.credentials.mcp_oauth_validate",
    "/v1/vaults/{vault_id}/credentials/{credential_id}/mcp_oauth_validate",
    reply="beta.vaults.BetaManagedAgentsCredentialValidation",
)
async def validate_credential(call: ApiCall, vaults: Vaults, validation: McpValidation) -> ASGIApp:
    """Whether its MCP server accepts it; one that is not accepted is renewed, and tried again."""
    credential = await vaults.owned_credential(call.key, *_which(call))
    return reply(await validation.validated(credential))


def _which(call: ApiCall) -> tuple[str, str]:
    return call.params["vault_id"], call.params["credential_id"]


def _view(record: Record) -> dict[str, Any]:
    """The `vault` object, as clients see it."""
    return {
        "type": "vault",
        "id": record.id,
        **record.body,
        **times(record.created_at, record.updated_at, record.archived_at),
    }


def _credential_view(credential: VaultCredential) -> dict[str, Any]:
    """The `vault_credential` object: the public part only."""
    return {
        "type": "vault_credential",
        "id": credential.id,
        "vault_id": credential.vault_id,
        "display_name": credential.display_name,
        "auth": msgspec.to_builtins(credential.auth),
        "metadata": credential.metadata,
        **times(credential.created_at, credential.updated_at, credential.archived_at),
    }
