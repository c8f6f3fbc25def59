"""`/roost/v1/environments/{id}/keys`: what the workers of a self-hosted environment are let in by."""

from __future__ import annotations

from typing import Annotated, Any, Final, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.access.environment_keys import EnvironmentKey, EnvironmentKeys
from roost.core.access.permissions import check_owner
from roost.core.access.revocations import Revocations
from roost.core.records.environments import Environments
from roost.domain.events import iso
from roost.errors import InvalidRequest

_AT: Final = "/roost/v1/environments/{environment_id}/keys"

RESOURCE: Final = Resource()


class EnvironmentKeyCreateParams(TypedDict, total=False):
    """A new key for workers."""

    name: Required[Annotated[str, Field(min_length=1, max_length=256)]]


@RESOURCE.post("roost.environments.keys.create", _AT, EnvironmentKeyCreateParams)
async def create(call: ApiCall, environments: Environments, keys: EnvironmentKeys) -> ASGIApp:
    """A new key. Its secret is in this answer, and nowhere else."""
    environment_id = await _owned(call, environments)
    key, secret = await keys.create(call.key, environment_id, call.body["name"])
    return reply({**_view(key), "secret": secret})


@RESOURCE.get("roost.environments.keys.list", _AT)
async def list_(call: ApiCall, environments: Environments, keys: EnvironmentKeys) -> ASGIApp:
    """The keys of an environment, newest first."""
    found = await keys.of(await _owned(call, environments))
    return reply({"data": [_view(key) for key in found], "next_page": None})


@RESOURCE.delete("roost.environments.keys.revoke", f"{_AT}/{{key_id}}")
async def revoke(
    call: ApiCall, environments: Environments, keys: EnvironmentKeys, revocations: Revocations
) -> ASGIApp:
    """From now on the key opens nothing, and neither do the tokens of items that were claimed with it."""
    environment_id = await _owned(call, environments)
    key = await keys.revoke(environment_id, call.params["key_id"])
    revocations.tell(key.id)
    return reply(_view(key))


async def _owned(call: ApiCall, environments: Environments) -> str:
    """:raises EnvironmentNotFound: :raises NotTheOwner: :raises InvalidRequest: it has no workers"""
    record = await environments.get(call.tenant, call.params["environment_id"])
    check_owner(call.key, record)
    if record.body["config"]["type"] != "self_hosted":
        raise InvalidRequest(
            f"environment {record.id} is not self-hosted: it has no workers that need keys"
        )
    return record.id


def _view(key: EnvironmentKey) -> dict[str, Any]:
    return {
        "type": "environment_key",
        "id": key.id,
        "environment_id": key.environment_id,
        "name": key.name,
        "created_by": key.created_by or None,
        "created_at": iso(key.created_at),
    }
