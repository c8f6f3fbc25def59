"""The scripted model's other language, the Responses API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from roost.serve.http import listening
from roost.testing.scripted_model import scripted_model


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with (
        listening(scripted_model(), "127.0.0.1", 0) as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        yield client


def user(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


async def ask(client: httpx2.AsyncClient, items: object) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"model": "m", "input": items})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def streamed(client: httpx2.AsyncClient, items: object) -> list[dict[str, Any]]:
    body = {"model": "m", "input": items, "stream": True}
    async with client.sse("/v1/responses", method="POST", json=body) as source:
        return [json.loads(event.data) async for event in source]


async def test_a_text_is_answered(client: httpx2.AsyncClient) -> None:
    body = await ask(client, "hello")
    (message,) = body["output"]
    assert message["content"][0]["text"].startswith("Scripted model here. I have seen 1 user")
    assert body["status"] == "completed"
    assert body["usage"]["total_tokens"] > 0


async def test_the_stream_adds_up_to_the_whole_answer(client: httpx2.AsyncClient) -> None:
    step = {"thinking": "hm", "text": "one two", "tool": "exec", "input": {"cmd": "date"}}
    events = await streamed(client, [user(f"SCRIPT{json.dumps([step])}")])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["delta"] for e in events if e["type"] == "response.output_text.delta"] == [
        "one ",
        "two",
    ]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert json.loads(done[2]["arguments"]) == {"cmd": "date"}


async def test_the_items_of_one_answer_are_one_step(client: httpx2.AsyncClient) -> None:
    steps = [{"text": "look", "tools": [{"tool": "a"}, {"tool": "b", "input": "free form"}]}]
    items = [user(f"SCRIPT{json.dumps([*steps, {'text': 'done'}])}")]
    first = await ask(client, items)
    assert [item["type"] for item in first["output"]] == [
        "message",
        "function_call",
        "custom_tool_call",
    ]
    items += first["output"]
    items += [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
        for item in first["output"][1:]
    ]
    second = await ask(client, items)
    assert second["output"][0]["content"][0]["text"] == "done"


async def test_failures_and_limits_are_in_the_apis_own_words(client: httpx2.AsyncClient) -> None:
    script = 'SCRIPT[{"error": {"status": 429, "type": "rate_limit_exceeded"}}]'
    refused = await client.post("/v1/responses", json={"model": "m", "input": script})
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_exceeded"
    events = await streamed(client, 'SCRIPT[{"text": "and so", "stop_reason": "max_tokens"}]')
    assert events[-1]["type"] == "response.incomplete"
    events = await streamed(client, 'SCRIPT[{"text": "no", "stop_reason": "refusal"}]')
    assert [e["delta"] for e in events if e["type"] == "response.refusal.delta"] == ["no"]


@pytest.mark.parametrize(
    "body", [{"input": [1]}, {"input": None}, {"input": "x", "previous_response_id": "resp_1"}]
)
async def test_a_request_that_cannot_be_understood_is_refused(
    client: httpx2.AsyncClient, body: dict[str, Any]
) -> None:
    refused = await client.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
