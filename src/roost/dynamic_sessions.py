"""A pool that runs code for whoever asks, as Azure's dynamic sessions do: one request, tried until it is answered.

Whatever is run through here may be run again: an answer that gets lost on the way is asked for once more.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import httpx2

NEWEST: Final = "2025-10-02-preview"
OLDER: Final = "2024-02-02-preview"
SCOPE: Final = "https://dynamicsessions.io/.default"
_FLAT_FROM: Final = "2024-10-01"

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_OTHER_SHAPE: Final = frozenset({400, 401, 404, 405})
_ABORTED: Final = ("Request timed out", "Execution aborted", "Kernel restarted")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_LONGEST_ASKED: Final = 60.0
_SECONDS: Final = 30  # of an execution; what is run here takes a few at most

Token = str | Callable[[], Awaitable[str]]


class PoolUnavailable(Exception):
    """The pool did not answer, for as long as it is tried."""


class PoolRefused(Exception):
    """The pool does not do it, and would not do it if it were asked again; `status` is that of HTTP."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


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
        self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(60.0, connect=10.0))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def run(self, identifier: str, code: str) -> Any:
        """Run code in an identifier's interpreter: what its last expression is.

        :raises PoolUnavailable: :raises PoolRefused: also if the code fails
        """
        began, pause = anyio.current_time(), _FIRST_PAUSE
        while True:
            try:
                return await self._once(identifier, code)
            except _Passing as passing:
                if anyio.current_time() - began >= self._patience:
                    raise PoolUnavailable(f"the pool does not answer: {passing}") from None
                await anyio.sleep(max(passing.pause, pause * random.uniform(0.5, 1)))
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _once(self, identifier: str, code: str) -> Any:
        """:raises _Passing: :raises PoolRefused:"""
        response = await self._sent(identifier, code)
        if not self._is_sure and response.status_code in _OTHER_SHAPE:
            self._version, self._is_sure = OLDER, True
            response = await self._sent(identifier, code)
        if response.status_code in _PASSING:
            raise _Passing(_said(response), _asked_pause(response))
        if response.status_code >= 300:
            raise PoolRefused(_said(response), response.status_code)
        self._is_sure = True
        return _value(response)

    async def _sent(self, identifier: str, code: str) -> httpx2.Response:
        token = self._token if isinstance(self._token, str) else await self._token()
        is_flat = self._version is not None and self._version >= _FLAT_FROM
        fields: dict[str, Any] = {
            "codeInputType": "inline",
            "executionType": "synchronous",
            "code": code,
            "timeoutInSeconds": _SECONDS,
        }
        params = {"identifier": identifier}
        if self._version is not None:
            params["api-version"] = self._version
        try:
            return await self._http.post(
                f"{self._endpoint}/{'executions' if is_flat else 'code/execute'}",
                params=params,
                json=fields if is_flat else {"properties": fields},
                headers={"authorization": f"Bearer {token}"},
            )
        except httpx2.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from None


def _value(response: httpx2.Response) -> Any:
    """What the code ended with, in both shapes. :raises _Passing: :raises PoolRefused:"""
    try:
        told = response.json()
        told = told.get("properties", told)
        inner = told["result"] if isinstance(told["result"], dict) else told
        status, errors = str(told["status"]), str(inner.get("stderr") or "")
        value = inner.get("executionResult") if inner is not told else told["result"]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise _Passing("the answer is not one of an execution") from None
    if status in ("Success", "Succeeded"):
        return value
    if status in ("Running", "NotStarted") or any(word in errors for word in _ABORTED):
        raise _Passing(f"the execution was not finished: {errors[-200:]}")
    raise PoolRefused(f"the code failed in the pool: {errors[-1000:]}")


def _said(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code}: {response.text[:500]}"


def _asked_pause(response: httpx2.Response) -> float:
    try:
        return min(float(response.headers.get("retry-after", "0")), _LONGEST_ASKED)
    except ValueError:
        return 0.0
