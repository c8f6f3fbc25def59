"""A server with a pool, and a client of the pool's data plane, for tests."""

from __future__ import annotations

from typing import Any

import httpx2

from roost.testing.live import LiveServer

OFFICIAL = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
NEW = "2025-10-02-preview"
OLD = "2024-02-02-preview"


class PoolClient:
    """Talks to one pool, as one key. `identifier` is added to each request that names none."""

    def __init__(self, server: LiveServer, key: str, pool: str, identifier: str) -> None:
        self.base = f"/roost/v1/pools/{pool}"
        self.identifier = identifier
        self._url = server.url
        self._headers = {"authorization": f"Bearer {key}"}

    def ask(
        self, method: str, path: str, version: str | None = NEW, **more: Any
    ) -> httpx2.Response:
        params: dict[str, str] = {"identifier": self.identifier, **more.pop("params", {})}
        if version is not None:
            params["api-version"] = version
        return self.send(method, f"{self.base}/{path}", params=params, **more)

    def send(self, method: str, url: str, **more: Any) -> httpx2.Response:
        """A request over a connection of its own, which is closed."""
        headers = {**self._headers, **more.pop("headers", {})}
        whole = url if url.startswith("http") else f"{self._url}{url}"
        return httpx2.request(method, whole, headers=headers, timeout=300, verify=False, **more)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        """What `executions` answers."""
        answer = self.ask("POST", "executions", json={"code": code, **fields})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def value(self, code: str) -> Any:
        told = self.run(code)
        assert told["status"] == "Succeeded", told
        return told["result"]["executionResult"]


def make_pool(server: LiveServer, name: str, key: str | None = None, **fields: Any) -> None:
    """A pool in an environment of its own."""
    with httpx2.Client(
        base_url=server.url, headers={"x-api-key": key or server.key, **OFFICIAL}, verify=False
    ) as http:
        made = http.post("/v1/environments", json={"name": f"of {name}"})
        assert made.status_code == 200, made.text
        body = {"name": name, "environment_id": made.json()["id"], **fields}
        answer = http.post("/roost/v1/pools", json=body)
        assert answer.status_code == 200, answer.text
