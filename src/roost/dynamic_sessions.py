"""A pool that runs code for whoever asks and keeps files, as Azure's dynamic sessions do: one request, tried until it is
answered.

Whatever is run through here may be run again: an answer that gets lost on the way is asked for once more.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import anyio
import httpx2

NEWEST: Final = "2025-10-02-preview"
OLDER: Final = "2024-02-02-preview"
ENDS_FROM: Final = "2025-02-02-preview"
"""The oldest version that ends a session when it is asked to."""
SCOPE: Final = "https://dynamicsessions.io/.default"
_FLAT_FROM: Final = "2024-10-01"

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_OTHER_SHAPE: Final = frozenset({400, 401, 404, 405})
_NO_SESSION: Final = "SessionWithIdentifierNotFound"
_ABORTED: Final = ("Request timed out", "Execution aborted", "Kernel restarted")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_LONGEST_ASKED: Final = 60.0
_MOST_ANSWERED: Final = 64 * 1024 * 1024
_SECONDS: Final = 30  # of an execution; what is run here takes a few at most

T = TypeVar("T")
Token = str | Callable[[], Awaitable[str]]


class PoolUnavailable(Exception):
    """The pool did not answer, for as long as it is tried."""


class PoolRefused(Exception):
    """The pool does not do it, and would not do it if it were asked again; `status` is that of HTTP."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


class PoolAnswer(NamedTuple):
    """What a pool has answered, and how long to wait if it says so."""

    status: int
    retry_after: str
    body: bytes

    @property
    def said(self) -> str:
        """In words."""
        return f"HTTP {self.status}: {self.body[:500].decode(errors='replace')}"

    @property
    def pause(self) -> float:
        """In seconds."""
        try:
            return min(float(self.retry_after or "0"), _LONGEST_ASKED)
        except ValueError:
            return 0.0


class _Passing(Exception):
    """It did not work this time; `pause` is how long to wait, if the pool says so."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


def azure_token(credential: Any = None) -> Callable[[], Awaitable[str]]:
    """Tokens of `azure-identity` (the extra `azure`): those of a credential, by default of this machine's own."""
    if credential is None:
        from azure.identity import DefaultAzureCredential

        credential = DefaultAzureCredential()

    async def token() -> str:
        found = await anyio.to_thread.run_sync(credential.get_token, SCOPE)
        return str(found.token)

    return token


class CodePool:
    """One pool, at its management endpoint. `api_version` None: as clients ask that name no version.

    The newest version is tried first. A pool that does not know it is asked as older clients do, from then on.
    """

    def __init__(
        self,
        endpoint: str,
        token: Token,
        *,
        api_version: str | None = NEWEST,
        patience: float = 300.0,
    ) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._version = api_version
        self._is_sure = api_version != NEWEST
        self._patience = patience
        self.repeated = 0
        """How many requests were sent again: what they ask for may have been done before."""
        self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(60.0, connect=10.0))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def run(self, identifier: str, code: str) -> Any:
        """Run code in an identifier's interpreter: what its last expression is.

        :raises PoolUnavailable: :raises PoolRefused: also if the code fails
        """
        fields: dict[str, Any] = {
            "codeInputType": "inline",
            "executionType": "synchronous",
            "code": code,
            "timeoutInSeconds": _SECONDS,
        }

        async def once() -> Any:
            answer = await self._asked(
                "POST",
                identifier,
                lambda is_flat: "executions" if is_flat else "code/execute",
                lambda is_flat: {"json": fields if is_flat else {"properties": fields}},
            )
            return _value(answer)

        return await self._until_answered(once)

    async def text(self, identifier: str, code: str) -> str:
        """The same, of code that ends with a text. Some pools put it into quotes.

        :raises PoolUnavailable: :raises PoolRefused:
        """
        found = str(await self.run(identifier, code))
        if found[:1] not in ("'", '"'):
            return found
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return str(ast.literal_eval(found))
        return found[1:]  # its end was cut off

    async def upload(self, identifier: str, folder: str, name: str, data: bytes) -> None:
        """Put a file into a folder of the identifier's files; one that is there is replaced.

        :raises PoolUnavailable: :raises PoolRefused:
        """
        await self._until_answered(
            lambda: self._asked(
                "POST",
                identifier,
                lambda is_flat: "files" if is_flat else "files/upload",
                # Without a folder of its own in their shape, older versions take it from the name.
                lambda is_flat: {
                    "params": {"path": folder} if is_flat else {},
                    "files": {"file": (name if is_flat else f"{folder}/{name}", data)},
                },
            )
        )

    async def download(self, identifier: str, folder: str, name: str, most: int) -> bytes:
        """The bytes of a file. :raises PoolUnavailable: :raises PoolRefused: it is not there, or has more than that"""
        response = await self._until_answered(
            lambda: self._asked(
                "GET",
                identifier,
                lambda is_flat: (
                    f"files/{quote(name, safe='')}/content"
                    if is_flat
                    else f"files/content/{quote(folder)}/{quote(name, safe='')}"
                ),
                lambda is_flat: {"params": {"path": folder} if is_flat else {}, "most": most},
            )
        )
        return response.body

    async def end(self, identifier: str) -> None:
        """End the identifier's session, with all that runs in it, if there is one.

        :raises PoolUnavailable: :raises PoolRefused: the pool cannot do that
        """
        try:
            await self._ended("DELETE", identifier, "session")
        except PoolRefused as refused:
            if refused.status not in _OTHER_SHAPE:
                raise
            await self._ended("POST", identifier, ".management/stopSession")

    async def _ended(self, method: str, identifier: str, path: str) -> None:
        try:
            await self._until_answered(lambda: self._sent(method, identifier, path, ENDS_FROM, {}))
        except PoolRefused as refused:
            # There is none; the second way says so in words only.
            if _NO_SESSION not in str(refused) and (refused.status != 400 or method != "POST"):
                raise

    async def _until_answered(self, once: Callable[[], Awaitable[T]]) -> T:
        began, pause = anyio.current_time(), _FIRST_PAUSE
        while True:
            try:
                return await once()
            except _Passing as passing:
                if anyio.current_time() - began >= self._patience:
                    raise PoolUnavailable(
                        f"the pool has not worked for too long: {passing}"
                    ) from None
                await anyio.sleep(max(passing.pause, pause * random.uniform(0.5, 1)))
                pause = min(pause * 2, _LONGEST_PAUSE)
                self.repeated += 1

    async def _asked(
        self,
        method: str,
        identifier: str,
        path: Callable[[bool], str],
        more: Callable[[bool], dict[str, Any]],
    ) -> PoolAnswer:
        """In the shape that the pool knows. :raises _Passing: :raises PoolRefused:"""
        is_flat = self._version is not None and self._version >= _FLAT_FROM
        try:
            response = await self._sent(
                method, identifier, path(is_flat), self._version, more(is_flat)
            )
        except PoolRefused as refused:
            if self._is_sure or refused.status not in _OTHER_SHAPE:
                raise
            self._version, self._is_sure = OLDER, True
            return await self._sent(method, identifier, path(False), OLDER, more(False))
        self._is_sure = True
        return response

    async def _bearer(self) -> str:
        if isinstance(self._token, str):
            return self._token
        try:
            return await self._token()
        except Exception as error:
            raise _Passing(f"there is no token: {error}") from error

    async def _sent(
        self, method: str, identifier: str, path: str, version: str | None, more: dict[str, Any]
    ) -> PoolAnswer:
        """:raises _Passing: :raises PoolRefused:"""
        token = await self._bearer()
        most = more.pop("most", _MOST_ANSWERED)
        params = {"identifier": identifier, **more.pop("params", {})}
        if version is not None:
            params["api-version"] = version
        headers = {"authorization": f"Bearer {token}"}
        url, body = f"{self._endpoint}/{path}", bytearray()
        try:
            async with self._http.stream(
                method, url, params=params, headers=headers, **more
            ) as response:
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > most:
                        raise PoolRefused(f"the pool answers with more than {most} bytes")
        except httpx2.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from None
        answer = PoolAnswer(
            response.status_code, response.headers.get("retry-after", ""), bytes(body)
        )
        if answer.status in _PASSING:
            raise _Passing(answer.said, answer.pause)
        if answer.status >= 300:
            raise PoolRefused(answer.said, answer.status)
        return answer


def _value(answer: PoolAnswer) -> Any:
    """What the code ended with, in both shapes. :raises _Passing: :raises PoolRefused:"""
    try:
        told = json.loads(answer.body)
        told = told.get("properties", told)
        inner = told["result"] if isinstance(told["result"], dict) else told
        status, errors = str(told["status"]), str(inner.get("stderr") or "")
        value = inner.get("executionResult") if inner is not told else told["result"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _Passing("the answer is not one of an execution") from None
    if status in ("Success", "Succeeded"):
        return value
    if status in ("Running", "NotStarted"):
        raise _Passing("the pool answers before the code has ended")
    if any(word in errors for word in _ABORTED):
        raise _Passing(f"the execution was not finished: {errors[-200:]}")
    raise PoolRefused(f"the code failed in the pool: {errors[-1000:]}")
