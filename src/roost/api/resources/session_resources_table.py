"""The operations on sessions' resources, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api.framework.routes import delete, get, post
from roost.api.resources import session_resources

_ALL: Final = "/v1/sessions/{session_id}/resources"
_ONE: Final = "/v1/sessions/{session_id}/resources/{resource_id}"
_RESOURCE = "beta.sessions.BetaManagedAgentsSessionResource"

RESOURCES: Final = (
    get(
        "sessions.resources.list",
        _ALL,
        session_resources.list_,
        "beta.sessions.ResourceListParams",
        reply=_RESOURCE,
        form="page",
    ),
    post(
        "sessions.resources.add",
        _ALL,
        session_resources.add,
        "beta.sessions.ResourceAddParams",
        reply="beta.sessions.BetaManagedAgentsFileResource",
    ),
    get(
        "sessions.resources.retrieve",
        _ONE,
        session_resources.retrieve,
        reply="beta.sessions.ResourceRetrieveResponse",
    ),
    post(
        "sessions.resources.update",
        _ONE,
        session_resources.update,
        session_resources.ResourceUpdateParams,
        reply="beta.sessions.ResourceUpdateResponse",
    ),
    delete(
        "sessions.resources.delete",
        _ONE,
        session_resources.delete,
        reply="beta.sessions.BetaManagedAgentsDeleteSessionResource",
    ),
)
