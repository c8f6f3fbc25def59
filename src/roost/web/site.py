"""Serves the browser app's files. It has no data of its own: it uses the public APIs alone.

The app draws its pages itself, so every address that a browser asks for a page at, and that is not a
file, is answered with the one page there is. Whatever else is asked for is left to the API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
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
    "vary": "accept-encoding",
}
_FOR_EVER: Final = {**_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
_TAKEN: Final = ("/v1/", "/roost/", "/auth/", "/ws/")
_ENCODINGS: Final = {"br": ".br", "gzip": ".gz"}
"""What the build has compressed each file with, the best first."""


class _File:
    """A file of the app, and what there is of it in compressed form. It is kept in memory, because a build of the
    app removes the files of the build before, and pages that are open still ask for those.
    """

    def __init__(self, path: Path, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._kind = guess_type(path)[0] or "application/octet-stream"
        self._plain = path.read_bytes()
        self._tag = hashlib.sha256(self._plain).hexdigest()[:32]
        forms = ((name, path.with_name(path.name + end)) for name, end in _ENCODINGS.items())
        self._forms = {name: form.read_bytes() for name, form in forms if form.is_file()}

    def answer(self, asked: Headers) -> Response:
        """The file in the best form that the browser takes, unless it has that already."""
        taken = _taken(asked.get("accept-encoding", ""))
        form = next((name for name in self._forms if name in taken), None)
        tag = f'"{self._tag}{f"-{form}" if form else ""}"'
        headers = {**self._headers, "etag": tag}
        if tag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if form is None:
            return Response(self._plain, headers=headers, media_type=self._kind)
        headers["content-encoding"] = form
        return Response(self._forms[form], headers=headers, media_type=self._kind)


class Site:
    """The app in front of the API, which gets everything that is not the app's.

    If the app is built anew, the next page is the new one, without a restart. Pages that are open go on with the
    parts of the build before, which they load when they need them.
    """

    def __init__(self, api: ASGIApp, dist: Path = DIST) -> None:
        self._api = api
        self._dist = dist
        self._build: tuple[int, int] | None = None
        self._files: dict[str, _File] = {}
        self._older: dict[str, _File] = {}
        self._look()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one connection, or one lifespan."""
        answer = self._answer(scope) or self._api
        await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp | None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return None
        path: str = scope["path"]
        asked = Headers(scope=scope)
        wants_page = "text/html" in asked.get("accept", "")
        if wants_page:
            self._look()
        if (file := self._files.get(path) or self._older.get(path)) is not None:
            return file.answer(asked)
        if path != "/" and (path.startswith(_TAKEN) or not wants_page):
            return None
        if not self._files:
            return PlainTextResponse(_NOT_BUILT, 404)
        return self._files["/index.html"].answer(asked)

    def _look(self) -> None:
        """Read the app if it has been built since. A build puts all its files there at once."""
        try:
            index = (self._dist / "index.html").stat()
            if (build := (index.st_ino, index.st_mtime_ns)) == self._build:
                return
            files = _read(self._dist)
        except FileNotFoundError:
            return  # there is none, or it is being replaced; the next page looks again
        self._build, self._older, self._files = build, self._files, files


def _read(dist: Path) -> dict[str, _File]:
    found = (path for path in dist.rglob("[!.]*") if path.is_file())
    return {
        f"/{path.relative_to(dist)}": _File(path, _headers_of(path.relative_to(dist)))
        for path in found
        if path.suffix not in _ENCODINGS.values()
    }


def _headers_of(name: Path) -> Mapping[str, str]:
    return _FOR_EVER if name.parts[0] == "assets" else _HEADERS


def _taken(accepted: str) -> set[str]:
    """The encodings that a browser takes: those it names, unless with a weight of nothing."""
    found: set[str] = set()
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "").rstrip("0") not in ("q=", "q=0."):
            found.add(name.strip().lower())
    return found
