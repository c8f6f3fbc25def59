"""Whether the process lives, whether it can serve, what it has counted. No key needed."""

from __future__ import annotations

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp

from roost import __version__
from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.errors import RoostError, Unavailable

RESOURCE: Final = Resource()


@RESOURCE.get("healthz", "/healthz", open=True)
async def healthz(call: ApiCall) -> ASGIApp:
    """The process answers."""
    return reply({"status": "ok", "version": __version__})


@RESOURCE.get("readyz", "/readyz", open=True)
async def readyz(call: ApiCall) -> ASGIApp:
    """Everything it needs answers too."""
    if call.deps.server.stopping():
        raise Unavailable("not ready: the server is stopping")
    if call.deps.server.draining():
        raise Unavailable("not ready: this node is draining", hint="Send clients to another node.")
    try:
        found = await call.deps.server.ready()
    except RoostError as error:
        raise Unavailable(f"not ready: {error.message}", hint=error.hint) from error
    return reply({"status": "ready", **found})


@RESOURCE.get("metrics", "/metrics", open=True, form="other", media="text/plain")
async def metrics(call: ApiCall) -> ASGIApp:
    """For Prometheus."""
    return Response(generate_latest(call.deps.registry), media_type=CONTENT_TYPE_LATEST)
