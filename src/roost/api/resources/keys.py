"""`/roost/v1/keys`: API keys, for administrators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import NAME
from roost.api.framework.call import ApiCall, administrators_only
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.access.permissions import may_ask_for
from roost.core.access.revocations import Revocations
from roost.domain.events import iso
from roost.domain.session import TrustLevel
from roost.errors import Forbidden, InvalidRequest, NotFound, OwnKey
from roost.ports.keys import Key, Sees, UsageLimits

RESOURCE: Final = Resource(
    bounds={"KeyCreateParams.name": NAME, "KeyUpdateParams.name": NAME},
)


class KeyLimits(TypedDict, total=False):
    """What a key may use. Omitted or null: the server's default; 0: no limit."""

    writes_per_minute: int | None
    reads_per_minute: int | None
    max_sessions: int | None


class KeyCreateParams(TypedDict, total=False):
    """A new key. Without a tenant it is for the caller's own.

    `sees`: what of its tenant's it is shown: what it has made itself (the default of users), or all. With
    `replaces` it acts for whom that key does, so that what is that one's is its own; whatever is not given
    is as that one has it.
    """

    name: str
    role: Literal["admin", "user"]
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    trust_ceiling: TrustLevel
    sees: Sees
    limits: KeyLimits
    replaces: Annotated[str, Field(min_length=1, max_length=128)]


class KeyUpdateParams(TypedDict, total=False):
    """What is to be different. `limits` replaces all of them."""

    name: str
    trust_ceiling: TrustLevel
    sees: Sees
    limits: KeyLimits


@RESOURCE.post("roost.keys.create", "/roost/v1/keys", KeyCreateParams)
async def create(call: ApiCall) -> ASGIApp:
    """A new key. Its secret is in this answer, and nowhere else."""
    administrators_only(call)
    fields: dict[str, Any] = dict(call.body)
    if "limits" in fields:
        fields["limits"] = UsageLimits(**fields["limits"])
    if "replaces" in fields:
        fields = await _replacing(call, fields.pop("replaces"), fields)
    elif "name" not in fields:
        raise InvalidRequest("name: Field required")
    fields.setdefault("tenant", call.tenant)
    _check_ceiling(call, fields.get("trust_ceiling", "sandboxed"))
    key, secret = await call.deps.keyring.create(**fields)
    return reply({**_view(key), "secret": secret})


async def _replacing(call: ApiCall, old_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a key that takes an old one's place, which goes on until it is revoked."""
    found = [key for key in await call.deps.keyring.all() if key.id == old_id]
    if not found:
        raise NotFound(f"there is no key {old_id}")
    old = found[0]
    if given.get("tenant", old.tenant) != old.tenant:
        raise InvalidRequest(f"tenant: {old_id} is a key of {old.tenant!r}")
    kept = {
        name: getattr(old, name) for name in ("name", "role", "trust_ceiling", "sees", "limits")
    }
    return {**kept, **given, "tenant": old.tenant, "owner": old.principal}


@RESOURCE.get("roost.keys.list", "/roost/v1/keys")
async def list_(call: ApiCall) -> ASGIApp:
    """All keys, of all tenants, oldest first."""
    administrators_only(call)
    keys = await call.deps.keyring.all()
    return reply({"data": [_view(key) for key in keys], "next_page": None})


@RESOURCE.post("roost.keys.update", "/roost/v1/keys/{key_id}", KeyUpdateParams)
async def update(call: ApiCall) -> ASGIApp:
    """A key with another name, ceiling or limits; its secret, role and tenant stay."""
    administrators_only(call)
    fields: dict[str, Any] = dict(call.body)
    if "trust_ceiling" in fields:
        _check_ceiling(call, fields["trust_ceiling"])
    if "limits" in fields:
        fields["limits"] = UsageLimits(**fields["limits"])
    key = await call.deps.keyring.change(call.params["key_id"], fields)
    call.deps.rates.forget(key.id)
    return reply(_view(key))


@RESOURCE.delete("roost.keys.revoke", "/roost/v1/keys/{key_id}")
async def revoke(call: ApiCall, revocations: Revocations) -> ASGIApp:
    """From now on the key opens nothing, and what it had opened ends. :raises OwnKey:"""
    administrators_only(call)
    if call.params["key_id"] == call.key.id:
        raise OwnKey()
    key = await call.deps.keyring.revoke(call.params["key_id"])
    call.deps.rates.forget(key.id)
    revocations.tell(key.id)
    return reply(_view(key))


def _check_ceiling(call: ApiCall, ceiling: TrustLevel) -> None:
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
        "sees": "tenant" if key.role == "admin" else key.sees,
        "principal": key.principal,
        "limits": key.limits,
        "created_at": iso(key.created_at),
        "revoked_at": None if key.revoked_at is None else iso(key.revoked_at),
    }
