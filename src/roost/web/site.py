"""Serves the browser app's files. It has no data of its own: it uses the public APIs alone.

The app draws its pages itself, so every address that a browser asks for a page at, and that is not a
file, is answered with the one page there is. Whatever else is asked for is left to the API.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

DIST: Final = Path(str(files("roost.web"))) / "dist"
_NOT_BUILT = "The browser app is not built. Run `make setup` in a checkout, or install the wheel.\n"
# Scripts and styles are the app's own. Mantine writes style attributes; nothing else is inline.
_POLICY: Final = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FOR_EVER: Final = {**_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
_TAKEN: Final = ("/v1/", "/roost/", "/auth/", "/ws/")


class Site:
    """The app in front of the API, which gets everything that is not the app's."""

    def __init__(self, api: ASGIApp, dist: Path = DIST) -> None:
        self._api = api
        self._page = dist / "index.html"
        found = (path for path in dist.rglob("[!.]*") if path.is_file())
        self._files = {f"/{path.relative_to(dist)}": path for path in found}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one connection, or one lifespan."""
        answer = self._answer(scope) or self._api
        await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp | None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return None
        path: str = scope["path"]
        if path in self._files:
            headers = _FOR_EVER if path.startswith("/assets/") else _HEADERS
            return FileResponse(self._files[path], headers=headers)
        wants_page = "text/html" in Headers(scope=scope).get("accept", "")
        if path != "/" and (path.startswith(_TAKEN) or not wants_page):
            return None
        if not self._files:
            return PlainTextResponse(_NOT_BUILT, 404)
        return FileResponse(self._page, headers=_HEADERS)
