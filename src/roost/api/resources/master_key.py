"""`/roost/v1/master_key`: which keys have sealed the secrets in the database, for administrators."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, administrators_only
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.vaults.reseal import Reseal

RESOURCE: Final = Resource()


class ResealParams(TypedDict, total=False):
    """Where to go on: `after` of the answer before; without it, from the beginning."""

    after: (
        Annotated[
            str, Field(pattern=r"^(credential|webhook|deployment|secret):[A-Za-z0-9_-]{0,128}$")
        ]
        | None
    )


@RESOURCE.get("roost.master_key.retrieve", "/roost/v1/master_key")
async def retrieve(call: ApiCall, reseal: Reseal) -> ASGIApp:
    """The fingerprint of the key that seals, and how many secrets each key has sealed."""
    administrators_only(call)
    counts = await reseal.counts()
    return reply({"type": "master_key", "key": reseal.key, "sealed_with": counts})


@RESOURCE.post("roost.master_key.reseal", "/roost/v1/master_key/reseal", ResealParams)
async def reseal_some(call: ApiCall, reseal: Reseal) -> ASGIApp:
    """Seal some secrets anew with the key that seals now."""
    administrators_only(call)
    step = await reseal.batch(call.body.get("after"))
    answer: dict[str, Any] = {"type": "reseal", "resealed": step.resealed}
    return reply({**answer, "unreadable": step.unreadable, "after": step.after})
