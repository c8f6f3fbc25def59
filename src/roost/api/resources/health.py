"""Whether the process lives, whether it can serve, what it has counted. No key needed."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp

from roost import __version__
from roost.api.framework.call import ApiCall, reply
from roost.errors import RoostError, Unavailable


async def healthz(call: ApiCall) -> ASGIApp:
    """The process answers."""
    return reply({"status": "ok", "version": __version__})


async def readyz(call: ApiCall) -> ASGIApp:
    """Everything it needs answers too."""
    if call.deps.stopping():
        raise Unavailable("not ready: the server is stopping")
    if call.deps.draining():
        raise Unavailable("not ready: this node is draining", hint="Send clients to another node.")
    try:
        found = await call.deps.ready()
    except RoostError as error:
        raise Unavailable(f"not ready: {error.message}", hint=error.hint) from error
    return reply({"status": "ready", **found})


async def metrics(call: ApiCall) -> ASGIApp:
    """For Prometheus."""
    return Response(generate_latest(call.deps.registry), media_type=CONTENT_TYPE_LATEST)
