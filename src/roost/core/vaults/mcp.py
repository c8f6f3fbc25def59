"""The credentials of MCP servers: as the egress asks for them, and whether one works."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from roost.core.vaults.refresh import OAuthRefresh, Renewal
from roost.core.vaults.secrets import VaultSecrets, opened_parts
from roost.domain.session import Session
from roost.domain.vault import McpOAuth, VaultCredential
from roost.errors import InvalidRequest
from roost.ports.egress import Credential
from roost.ports.outbound import HttpAnswer, NoAnswer, Outbound
from roost.ports.seal import Seal

_PROBE: Final = "initialize"
_NOT_ACCEPTED: Final = 401
_HELLO: Final = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": _PROBE,
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "roost", "version": "1"},
        },
    }
)


class McpCredentials:
    """What a session's vaults have for its agent's MCP servers."""

    def __init__(self, secrets: VaultSecrets, refresh: OAuthRefresh) -> None:
        self._secrets = secrets
        self._refresh = refresh

    def of(self, session: Session, url: str) -> Credential | None:
        """The credential for a server. Which one that is, is looked up for each request: one that is added,
        replaced or archived counts from then on.
        """
        if not session.spec.vault_ids:
            return None

        async def secret() -> str | None:
            found = await self._secrets.mcp(session, url)
            return None if found is None else await self._refresh.token(found)

        async def rejected(token: str) -> bool:
            found = await self._secrets.mcp(session, url)
            return found is not None and await self._refresh.replaced(found, token)

        return Credential(secret, "bearer", rejected)


class McpValidation:
    """Tries a credential at its MCP server."""

    def __init__(self, refresh: OAuthRefresh, outbound: Outbound, seal: Seal) -> None:
        self._refresh = refresh
        self._outbound = outbound
        self._seal = seal

    async def validated(self, credential: VaultCredential) -> dict[str, Any]:
        """Whether its server accepts it, as the API says that. If not, it is renewed, and tried again.

        :raises InvalidRequest: it is of another type :raises NotFound: it is archived :raises CannotUnseal:
        """
        if not isinstance(credential.auth, McpOAuth):
            raise InvalidRequest("only credentials of the type mcp_oauth can be validated")
        answer = await self._probed(credential)
        renewal = None
        if _is(answer, _NOT_ACCEPTED) and credential.auth.refresh is not None:
            renewal = await self._refresh.renew(credential)
            if renewal.failure is None:
                answer = await self._probed(renewal.credential)
        return {
            "type": "vault_credential_validation",
            "credential_id": credential.id,
            "vault_id": credential.vault_id,
            "has_refresh_token": credential.auth.refresh is not None,
            "status": _status(answer, renewal),
            "mcp_probe": _failed_probe(answer),
            "refresh": _refresh(answer, renewal),
            "validated_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }

    async def _probed(self, credential: VaultCredential) -> HttpAnswer | NoAnswer:
        assert isinstance(credential.auth, McpOAuth)
        token = opened_parts(self._seal, credential).value
        headers = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        return await self._outbound.post(credential.auth.mcp_server_url, headers, _HELLO, [token])


def _is(answer: HttpAnswer | NoAnswer, status: int) -> bool:
    return isinstance(answer, HttpAnswer) and answer.status == status


def _status(answer: HttpAnswer | NoAnswer, renewal: Renewal | None) -> str:
    if isinstance(answer, HttpAnswer) and answer.status < 300:
        return "valid"
    if not _is(answer, _NOT_ACCEPTED):
        return "unknown"
    if renewal is None or renewal.failure is None or renewal.credential.refresh_failed:
        return "invalid"
    return "unknown"


def _failed_probe(answer: HttpAnswer | NoAnswer) -> dict[str, Any] | None:
    if isinstance(answer, HttpAnswer) and answer.status < 300:
        return None
    return {"method": _PROBE, "http_response": _shown(answer)}


def _refresh(answer: HttpAnswer | NoAnswer, renewal: Renewal | None) -> dict[str, Any] | None:
    if renewal is None:
        wanted = _is(answer, _NOT_ACCEPTED)
        return {"status": "no_refresh_token", "http_response": None} if wanted else None
    if renewal.failure is None:
        return {"status": "succeeded", "http_response": None}
    status = "failed" if isinstance(renewal.failure, HttpAnswer) else "connect_error"
    return {"status": status, "http_response": _shown(renewal.failure)}


def _shown(answer: HttpAnswer | NoAnswer) -> dict[str, Any] | None:
    if isinstance(answer, NoAnswer):
        return None
    # An answer that grants something may have tokens in it that nobody knows yet, in whatever form it is.
    is_granting = answer.status < 300
    return {
        "status_code": answer.status,
        "content_type": answer.content_type,
        "body": "" if is_granting else answer.shown,
        "body_truncated": answer.is_cut or is_granting,
    }
