"""`/v1/models`: what agents can be made with here."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.records.models import Models
from roost.errors import InvalidRequest
from roost.ports.models import ListedModel

_MODEL = "ModelInfo"
_USUAL_PAGE: Final = 20
_UNKNOWN: Final = "1970-01-01T00:00:00Z"
_ID: Final = Field(min_length=1, max_length=256)

RESOURCE: Final = Resource(
    bounds={
        "ModelListParams.limit": Field(ge=1, le=1000),
        "ModelListParams.after_id": _ID,
        "ModelListParams.before_id": _ID,
    },
    beta=False,
)


@RESOURCE.get("models.list", "/v1/models", "ModelListParams", reply=_MODEL, form="other")
async def list_(call: ApiCall, models: Models) -> ASGIApp:
    """The models that are served here."""
    found = [_view(each) for each in await models.all()]
    if "lifecycle" in call.query and "active" not in call.query["lifecycle"]:
        found = []
    return reply(_page(found, call.query))


@RESOURCE.get("models.retrieve", "/v1/models/{model_id}", reply=_MODEL)
async def retrieve(call: ApiCall, models: Models) -> ASGIApp:
    """One of them."""
    return reply(_view(await models.get(call.params["model_id"])))


def _page(found: list[dict[str, Any]], query: dict[str, Any]) -> dict[str, Any]:
    """The official list's own form: by the ids of its neighbours."""
    limit, after, before = (
        query.get("limit", _USUAL_PAGE),
        query.get("after_id"),
        query.get("before_id"),
    )
    if after is not None and before is not None:
        raise InvalidRequest("after_id: not together with `before_id`")
    ids = [each["id"] for each in found]
    for field, given in (("after_id", after), ("before_id", before)):
        if given is not None and given not in ids:
            raise InvalidRequest(f"{field}: no model in the list has this id")
    if before is not None:
        end = ids.index(before)
        start = max(0, end - limit)
        more = start > 0
    else:
        start = 0 if after is None else ids.index(after) + 1
        end = start + limit
        more = end < len(ids)
    data = found[start:end]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": more, "first_id": first, "last_id": last}


def _view(model: ListedModel) -> dict[str, Any]:
    """The `model` object, as clients see it."""
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.display_name or model.id,
        "created_at": model.created_at or _UNKNOWN,
        "lifecycle": "active",
        "capabilities": None,
        "deprecated_at": None,
        "line": None,
        "max_input_tokens": model.max_input_tokens,
        "max_tokens": model.max_tokens,
        "retires_at": None,
    }
