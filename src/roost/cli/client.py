"""The public API over HTTP, as the commands need it. Problems come back as `roost.errors`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx2

from roost import errors
from roost.errors import MethodNotAllowed, RateLimited, RoostError, Unauthenticated, Unavailable

_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
_TIMEOUT = httpx2.Timeout(60.0, connect=5.0)
_LONG = httpx2.Timeout(3600.0, connect=5.0)  # what is large is packed before its first byte
_LOOPBACK = ("http://127.", "http://localhost", "http://[::1]")
_NO_KEY = (  # the server's own is for programs: which header to send
    "Set ROOST_API_KEY to a key of that server. The administrator's is in keys/admin.key of its data "
    "directory."
)
_PASSING = frozenset({408, 429, 502, 503, 504})
_TRIES = 6

Json = dict[str, Any]
Params = Mapping[str, str | int | list[str]]


class ApiClient:
    """One server and one key."""

    def __init__(self, base_url: str, key: str | None) -> None:
        self.base_url = base_url
        headers = _HEADERS | ({"x-api-key": key} if key else {})
        with self._understood():
            self._http = httpx2.Client(
                base_url=base_url,
                headers=headers,
                timeout=_TIMEOUT,
                # A proxy of the environment is for the outside; it cannot reach this machine's loopback.
                trust_env=not base_url.startswith(_LOOPBACK),
                # Reading all certificates takes longer than most commands; plain HTTP needs none.
                verify=not base_url.startswith("http://"),
            )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> Json:
        """The JSON at a path. :raises RoostError: what the server said, or that there is none"""
        return self._send("GET", path, params=params)

    def post(self, path: str, body: Json, *, takes_long: bool = False) -> Json:
        """What the server answers to a body. :raises RoostError: see `get`"""
        return self._send("POST", path, json=body, timeout=_LONG if takes_long else _TIMEOUT)

    def post_surely(self, path: str, body: Json) -> Json:
        """Like `post`, again and again through passing trouble: for a body that names itself.

        The events in it carry a `client_id`, so the server keeps one of them however often it is
        sent. :raises RoostError: it was refused, or the trouble does not pass
        """
        for pause in islice(pauses(), _TRIES):
            try:
                return self.post(path, body)
            except (Unavailable, RateLimited):
                time.sleep(pause)
        return self.post(path, body)

    def upload(
        self,
        path: str,
        name: str,
        file: BinaryIO,
        fields: Mapping[str, str],
        filename: str | None = None,
    ) -> Json:
        """What the server answers to a form with a file. :raises RoostError: see `get`"""
        files = {name: (filename or name, file, "application/octet-stream")}
        return self._send("POST", path, files=files, data=dict(fields), timeout=_LONG)

    def download(self, path: str, params: Params) -> Iterator[bytes]:
        """The bytes at a path, in pieces. :raises RoostError: see `get`, or that some are missing"""
        with (
            self._understood(),
            self._http.stream("GET", path, params=dict(params), timeout=_LONG) as response,
        ):
            if response.is_error:
                response.read()
                raise problem(response)
            yield from response.iter_bytes()

    def delete(self, path: str) -> Json:
        """What the server answers. :raises RoostError: see `get`"""
        return self._send("DELETE", path)

    def pages(self, path: str, params: Params | None = None) -> Iterator[Json]:
        """Every item of a listing, page after page."""
        asked: dict[str, Any] = dict(params or {})
        while True:
            answer = self.get(path, asked)
            yield from answer["data"]
            if not answer.get("next_page"):
                return
            asked["page"] = answer["next_page"]

    @contextmanager
    def stream(self, path: str, params: Params, after: str) -> Iterator[httpx2.EventSource]:
        """An open event stream that begins after a cursor. :raises RoostError: see `get`"""
        headers = {"accept": "text/event-stream", "last-event-id": after}
        with (
            self._understood(),
            self._http.stream("GET", path, params=dict(params), headers=headers) as response,
        ):
            if response.is_error:
                response.read()
                raise problem(response)
            yield httpx2.EventSource(response)

    def _send(self, method: str, path: str, **request: Any) -> Json:
        with self._understood():
            response = self._http.request(method, path, **request)
            if response.is_error:
                raise problem(response)
            answer: Json = response.json()
            return answer

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """What goes wrong on the way, in words that say what to do."""
        try:
            yield
        except httpx2.ConnectError as error:
            raise Unavailable(
                f"no server at {self.base_url}",
                hint="Start one with `roost serve` or `make up`, or name another with --url.",
            ) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise Unavailable(
                f"{self.base_url!r} is not the address of a server: {error}",
                hint="Check --url and $ROOST_URL: it is such as http://127.0.0.1:8700.",
            ) from error
        except httpx2.HTTPError as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"the connection to {self.base_url} failed: {said}") from error
        except ValueError as error:
            raise RoostError(
                f"what answers at {self.base_url} is not a Roost server",
                hint="Check --url and $ROOST_URL.",
            ) from error


def at(*parts: str) -> str:
    """A path with its parts quoted, so that an id cannot name another path."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def problem(response: httpx2.Response) -> RoostError:
    """The server's error as one of ours: its message, its hint, and the class of its code."""
    error = _error_in(response)
    message = str(error.get("message") or f"the server answered {response.status_code}")
    details = error.get("details")
    said: Json = details if isinstance(details, dict) else {}
    kind = _CLASSES.get(str(said.get("error_code")), _class_of(response.status_code))
    hint = _NO_KEY if kind is Unauthenticated else said.get("hint")
    return kind(message, hint=hint)


def _error_in(response: httpx2.Response) -> Json:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _class_of(status: int) -> type[RoostError]:
    if status == 401:
        return Unauthenticated
    return Unavailable if status in _PASSING else RoostError


def pauses() -> Iterator[float]:
    """How long to wait before each next try: a quarter of a second, doubling up to five."""
    pause = 0.25
    while True:
        yield pause
        pause = min(pause * 2, 5.0)


_CLASSES = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RoostError) and kind is not MethodNotAllowed
}
