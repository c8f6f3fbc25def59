"""The operations on sessions' resources, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api import resources
from roost.api.routes import delete, get, post

_ALL: Final = "/v1/sessions/{session_id}/resources"
_ONE: Final = "/v1/sessions/{session_id}/resources/{resource_id}"
_RESOURCE = "beta.sessions.BetaManagedAgentsSessionResource"

RESOURCES: Final = (
    get(
        "sessions.resources.list",
        _ALL,
        resources.list_,
        "beta.sessions.ResourceListParams",
        reply=_RESOURCE,
        form="page",
    ),
    post(
        "sessions.resources.add",
        _ALL,
        resources.add,
        "beta.sessions.ResourceAddParams",
        reply="beta.sessions.BetaManagedAgentsFileResource",
    ),
    get(
        "sessions.resources.retrieve",
        _ONE,
        resources.retrieve,
        reply="beta.sessions.ResourceRetrieveResponse",
    ),
    post(
        "sessions.resources.update",
        _ONE,
        resources.update,
        resources.ResourceUpdateParams,
        reply="beta.sessions.ResourceUpdateResponse",
    ),
    delete(
        "sessions.resources.delete",
        _ONE,
        resources.delete,
        reply="beta.sessions.BetaManagedAgentsDeleteSessionResource",
    ),
)
