"""The worker protocol of the Managed Agents API, from the worker's side: the requests that a worker makes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import httpx2
import msgspec

Json = dict[str, Any]

_BETA: Final = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
_BLOCKS: Final = 999  # milliseconds, the most that the API takes
_PAGE: Final = 1000
# Seconds after which a stream counts as broken: servers say something more often.
_SILENCE: Final = 90.0


class WorkRefused(Exception):
    """The server has answered a request with an error. `lasting`: asked again, it would answer the same."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.lasting = 400 <= status < 500 and status not in (408, 409, 429)


class ClaimedWork(msgspec.Struct, frozen=True):
    """A work item that was polled, and the credential for it."""

    id: str
    session_id: str
    token: str


class WorkClient:
    """Makes the requests of one worker.

    :raises WorkRefused: from all methods: the server says no
    :raises httpx2.HTTPError: from all methods: it cannot be reached
    """

    def __init__(
        self, http: httpx2.AsyncClient, environment_id: str, key: str, worker_id: str
    ) -> None:
        self._http = http
        self._at = f"/v1/environments/{environment_id}/work"
        self._key = key
        self._worker_id = worker_id

    async def poll(self) -> ClaimedWork | None:
        """The next item, if there is one within a second."""
        found = await self._ask(
            "GET",
            f"{self._at}/poll",
            self._key,
            params={"block_ms": _BLOCKS},
            headers={"anthropic-worker-id": self._worker_id},
        )
        if found is None:
            return None
        return ClaimedWork(found["id"], found["data"]["id"], _token(found.get("secret"), self._key))

    async def ack(self, work: ClaimedWork) -> None:
        """Take an item that was polled."""
        await self._ask("POST", f"{self._at}/{work.id}/ack", self._key, json={})

    async def heartbeat(self, work: ClaimedWork, last: str) -> Json:
        """Say that the item is still worked on; the answer has what to expect next time."""
        path, query = f"{self._at}/{work.id}/heartbeat", {"expected_last_heartbeat": last}
        answer: Json = await self._ask("POST", path, work.token, params=query, json={})
        return answer

    async def stop(self, work: ClaimedWork) -> None:
        """Give the item back: nothing of it runs here any more."""
        await self._ask("POST", f"{self._at}/{work.id}/stop", work.token, json={"force": True})

    async def session(self, work: ClaimedWork) -> Json:
        """The session of an item."""
        found: Json = await self._ask("GET", f"/v1/sessions/{work.session_id}", work.token)
        return found

    async def skill(self, work: ClaimedWork, skill_id: str, version: str) -> bytes:
        """A version of a skill, as a zip."""
        path = f"/v1/skills/{skill_id}/versions/{version}/content"
        answer = await self._http.get(path, headers=self._headers(work.token))
        return _checked(answer).content

    async def send(self, work: ClaimedWork, event: Json) -> None:
        """Bring the result of a call."""
        path = f"/v1/sessions/{work.session_id}/events"
        await self._ask("POST", path, work.token, json={"events": [event]})

    async def events(self, work: ClaimedWork) -> AsyncGenerator[Json, None]:
        """All events of the session, and then each as it comes; between the two comes an empty one. It ends when
        the stream does.
        """
        path, page, last = f"/v1/sessions/{work.session_id}/events", None, 0
        while True:
            query = {"limit": _PAGE} | ({"page": page} if page else {})
            found = await self._ask("GET", path, work.token, params=query)
            for event in found["data"]:
                last = event["seq"]
                yield event
            if (page := found["next_page"]) is None:
                break
        headers = self._headers(work.token)
        async with self._http.stream(
            "GET", f"{path}/stream", params={"after": last}, headers=headers, timeout=_SILENCE
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
            _checked(answer)
            yield {}
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    async def _ask(
        self, method: str, path: str, token: str, headers: Json | None = None, **more: Any
    ) -> Any:
        given = {**self._headers(token), **(headers or {})}
        return _checked(await self._http.request(method, path, headers=given, **more)).json()

    def _headers(self, token: str) -> dict[str, str]:
        return {**_BETA, "authorization": f"Bearer {token}"}


def _checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.status_code == 200:
        return answer
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    raise WorkRefused(answer.status_code, message)


def _token(secret: str | None, key: str) -> str:
    """The token in what a poll gives with an item; without one, the key does for it."""
    try:
        padded = (secret or "") + "=" * (-len(secret or "") % 4)
        return str(json.loads(base64.urlsafe_b64decode(padded))["sessions_token"])
    except (ValueError, KeyError, TypeError):
        return key
