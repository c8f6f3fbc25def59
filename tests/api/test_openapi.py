"""The API's own description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
from tests.api.api_server import api_server

from roost.api.operations import OPERATIONS


async def description(tmp_path: Path) -> Any:
    async with api_server(tmp_path) as roost:
        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(roost.app), base_url="http://roost"
        )
        return (await client.get("/openapi.json")).json()


async def test_every_served_operation_is_described(tmp_path: Path):
    found = await description(tmp_path)
    assert found["openapi"].startswith("3.1")
    described = {
        (method.upper(), path) for path, methods in found["paths"].items() for method in methods
    }
    assert described == {(o.method, o.path) for o in OPERATIONS if o.served}
    assert len(found["x-not-served"]) == len([o for o in OPERATIONS if not o.served])


async def test_bodies_parameters_and_errors_are_described(tmp_path: Path):
    found = await description(tmp_path)
    send = found["paths"]["/v1/sessions/{session_id}/events"]["post"]
    schema = send["requestBody"]["content"]["application/json"]["schema"]
    assert schema["$ref"] == "#/components/schemas/EventSendParams"
    assert "Error" in send["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
    listed = found["paths"]["/v1/sessions"]["get"]
    names = {parameter["name"]: parameter for parameter in listed["parameters"]}
    assert names["limit"]["schema"]["maximum"] == 1000
    assert {"created_at[gte]", "statuses", "page", "anthropic-version"} <= set(names)
    body = listed["responses"]["200"]["content"]["application/json"]["schema"]
    assert "prev_page" in body["required"]


async def test_every_reference_leads_somewhere(tmp_path: Path):
    found = await description(tmp_path)
    known = found["components"]["schemas"]
    left: list[Any] = [found]
    while left:
        here = left.pop()
        if isinstance(here, dict):
            if "$ref" in here and isinstance(here["$ref"], str):
                assert here["$ref"].removeprefix("#/components/schemas/") in known
            left.extend(here.values())
        elif isinstance(here, list):
            left.extend(here)
