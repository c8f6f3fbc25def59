"""`/roost/v1/keys`: API keys, for administrators."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.call import Call, administrators_only, reply
from roost.core.trust import may_ask_for
from roost.domain.events import iso
from roost.domain.session import TrustLevel
from roost.errors import Forbidden, OwnKey
from roost.ports.keys import Key, Limits


class KeyLimits(TypedDict, total=False):
    """What a key may use. Omitted or null: the server's default; 0: no limit."""

    writes_per_minute: int | None
    reads_per_minute: int | None
    max_sessions: int | None


class KeyCreateParams(TypedDict, total=False):
    """A new key. Without a tenant it is for the caller's own."""

    name: Required[str]
    role: Literal["admin", "user"]
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    trust_ceiling: TrustLevel
    limits: KeyLimits


class KeyUpdateParams(TypedDict, total=False):
    """What is to be different. `limits` replaces all of them."""

    name: str
    trust_ceiling: TrustLevel
    limits: KeyLimits


async def create(call: Call) -> ASGIApp:
    """A new key. Its secret is in this answer, and nowhere else."""
    administrators_only(call)
    given = call.body
    ceiling: TrustLevel = given.get("trust_ceiling", "sandboxed")
    _check_ceiling(call, ceiling)
    key, secret = await call.deps.keyring.create(
        tenant=given.get("tenant", call.tenant),
        name=given["name"],
        role=given.get("role", "user"),
        trust_ceiling=ceiling,
        limits=Limits(**given.get("limits", {})),
    )
    return reply({**_view(key), "secret": secret})


async def update(call: Call) -> ASGIApp:
    """A key with another name, ceiling or limits; its secret, role and tenant stay."""
    administrators_only(call)
    fields: dict[str, Any] = dict(call.body)
    if "trust_ceiling" in fields:
        _check_ceiling(call, fields["trust_ceiling"])
    if "limits" in fields:
        fields["limits"] = Limits(**fields["limits"])
    key = await call.deps.keyring.change(call.params["key_id"], fields)
    call.deps.rates.forget(key.id)
    return reply(_view(key))


async def list_(call: Call) -> ASGIApp:
    """All keys, of all tenants, oldest first."""
    administrators_only(call)
    keys = await call.deps.keyring.all()
    return reply({"data": [_view(key) for key in keys], "next_page": None})


async def revoke(call: Call) -> ASGIApp:
    """From now on the key opens nothing, and what it had opened ends. :raises OwnKey:"""
    administrators_only(call)
    if call.params["key_id"] == call.key.id:
        raise OwnKey()
    key = await call.deps.keyring.revoke(call.params["key_id"])
    call.deps.rates.forget(key.id)
    call.deps.revocations.tell(key.id)
    return reply(_view(key))


def _check_ceiling(call: Call, ceiling: TrustLevel) -> None:
    if not may_ask_for(call.key, ceiling):
        raise Forbidden(f"trust_ceiling: this key itself reaches {call.key.trust_ceiling!r} only")


def _view(key: Key) -> dict[str, Any]:
    return {
        "type": "api_key",
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "role": key.role,
        "hint": key.hint,
        "trust_ceiling": key.trust_ceiling,
        "limits": key.limits,
        "created_at": iso(key.created_at),
        "revoked_at": None if key.revoked_at is None else iso(key.revoked_at),
    }
