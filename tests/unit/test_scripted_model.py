"""The scripted model, seen by the official client over a real port."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator

import anthropic
import anyio
import httpx2
import pytest

from roost.serve.http import listening
from roost.testing.scripted_model import ScriptedModel, scripted_model

BODY = {"model": "scripted", "max_tokens": 100}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model() -> ScriptedModel:
    return scripted_model()


@pytest.fixture
async def url(model: ScriptedModel) -> AsyncGenerator[str, None]:
    async with listening(model, "127.0.0.1", 0) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncGenerator[anthropic.AsyncAnthropic, None]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        yield client


def said(message: object) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_without_a_script_it_says_how_many_messages_it_has_seen(
    client: anthropic.AsyncAnthropic,
) -> None:
    answer = await client.messages.create(
        **BODY,
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "…"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ],
    )
    assert said(answer) == (
        "Scripted model here. I have seen 2 user messages in this conversation; "
        "the last one says: two"
    )
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens > 0


async def test_the_official_client_reads_its_stream(client: anthropic.AsyncAnthropic) -> None:
    script = (
        'SCRIPT[{"thinking": "hm", "text": "one two", "tools": [{"tool": "a"}, {"tool": "b"}]}]'
    )
    prompt = [{"role": "user", "content": script}]
    async with client.messages.stream(**BODY, messages=prompt) as stream:
        deltas = [text async for text in stream.text_stream]
        answer = await stream.get_final_message()
    assert deltas == ["one ", "two"]
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.stop_reason == "tool_use"


async def test_streamed_or_not_the_answer_and_its_usage_are_the_same(
    client: anthropic.AsyncAnthropic,
) -> None:
    call = '{"text": "é ok", "tool": "Bash", "input": {"command": "date"}}'
    prompt = [{"role": "user", "content": f"SCRIPT[{call}]"}]
    whole = await client.messages.create(**BODY, messages=prompt)
    async with client.messages.stream(**BODY, messages=prompt) as stream:
        streamed = await stream.get_final_message()
    without_ids = {"id": True, "content": {1: {"id"}}, "container": True}
    assert streamed.model_dump(exclude=without_ids) == whole.model_dump(exclude=without_ids)


async def test_the_step_played_is_the_number_of_answers_since_the_script(
    client: anthropic.AsyncAnthropic,
) -> None:
    messages = [{"role": "user", "content": 'SCRIPT[{"text": "a"}, {"text": "b"}]'}]
    heard = []
    for _ in range(3):
        answer = await client.messages.create(**BODY, messages=messages)
        heard.append(said(answer))
        messages += [{"role": "assistant", "content": heard[-1]}, {"role": "user", "content": "on"}]
    assert heard[:2] == ["a", "b"]
    assert heard[2].startswith("The script is over: all of its steps are played (2).")


async def test_the_newest_script_counts_and_notes_to_the_model_do_not(
    client: anthropic.AsyncAnthropic,
) -> None:
    answer = await client.messages.create(
        **BODY,
        system="You are being tested.",
        messages=[
            {"role": "user", "content": 'SCRIPT[{"text": "old"}]'},
            {"role": "assistant", "content": "old"},
            {"role": "system", "content": "# Environment"},
            {"role": "user", "content": 'SCRIPT[{"text": "new"}] and more words ]'},
        ],
    )
    assert said(answer) == "new"


async def test_a_script_in_a_call_that_is_told_of_is_not_played(
    client: anthropic.AsyncAnthropic,
) -> None:
    inner = 'SCRIPT[{"text": "inner"}]'
    outer = json.dumps([{"tool": "Agent", "input": {"prompt": inner}}, {"text": "outer"}])
    told = f"You called Agent {json.dumps({'prompt': inner})}"
    answer = await client.messages.create(
        **BODY,
        messages=[
            {"role": "user", "content": f"SCRIPT{outer}"},
            {"role": "assistant", "content": "…"},
            {"role": "user", "content": told},
        ],
    )
    assert said(answer) == "outer"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ('SCRIPT[{"text": "a"} {"text": "b"}]', "Expecting ',' delimiter at character 16"),
        ('SCRIPT[{"txt": "a"}]', "unknown field `txt` - at `$[0]`"),
        ('SCRIPT[{"delay": -1}]', "Expected `float` >= 0"),
        ('SCRIPT[{"delay": NaN}]', "NaN is not JSON"),
        ("SCRIPT[" * 5000, "I cannot read the script"),
        ('SCRIPT[{"error": {"headers": {"x": "a\\r\\nb: c"}}}]', "I cannot play the script"),
    ],
)
async def test_a_script_that_cannot_be_read_is_answered_with_the_reason(
    client: anthropic.AsyncAnthropic, script: str, complaint: str
) -> None:
    answer = await client.messages.create(**BODY, messages=[{"role": "user", "content": script}])
    assert complaint in said(answer)
    assert 'SCRIPT[{"text": "Hello."}]' in said(answer)


async def test_a_scripted_failure_comes_as_often_as_told_and_then_again_for_the_next_run(
    client: anthropic.AsyncAnthropic,
) -> None:
    script = 'SCRIPT[{"text": "ok", "error": {"status": 529, "times": 1, "headers": {"retry-after": "7"}}}]'
    prompt = [{"role": "user", "content": script}]
    for _ in range(2):
        with pytest.raises(anthropic.APIStatusError) as failure:
            await client.messages.create(**BODY, messages=prompt)
        assert failure.value.status_code == 529
        assert failure.value.response.headers["retry-after"] == "7"
        assert failure.value.request_id
        assert failure.value.body["error"]["type"] == "overloaded_error"
        assert said(await client.messages.create(**BODY, messages=prompt)) == "ok"


async def test_a_cut_breaks_the_connection_after_that_many_pieces(
    client: anthropic.AsyncAnthropic,
) -> None:
    prompt = [{"role": "user", "content": 'SCRIPT[{"text": "one two three", "cut": 2}]'}]
    heard = []
    with pytest.raises(httpx2.RemoteProtocolError):
        async with client.messages.stream(**BODY, messages=prompt) as stream:
            heard = [text async for text in _kept(stream.text_stream, heard)]
    assert heard == ["one ", "two "]
    with pytest.raises(anthropic.APIConnectionError):
        await client.messages.create(**BODY, messages=prompt)


async def _kept(texts: AsyncGenerator[str, None], heard: list[str]) -> AsyncGenerator[str, None]:
    async for text in texts:
        heard.append(text)
        yield text


async def test_delays_are_kept_before_the_first_byte_and_between_pieces(
    client: anthropic.AsyncAnthropic,
) -> None:
    step = '{"text": "a b c", "delay": 0.1, "chunk_delay": 0.1}'
    began = time.monotonic()
    prompt = [{"role": "user", "content": f"SCRIPT[{step}]"}]
    async with client.messages.stream(**BODY, messages=prompt) as stream:
        moments = [time.monotonic() - began async for _ in stream.text_stream]
    assert [moment > at for moment, at in zip(moments, (0.1, 0.2, 0.3), strict=True)] == [True] * 3


async def test_a_client_that_leaves_is_not_waited_for(model: ScriptedModel) -> None:
    began = time.monotonic()
    async with (
        listening(model, "127.0.0.1", 0) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        prompt = [{"role": "user", "content": 'SCRIPT[{"text": "a", "delay": 30}]'}]
        with anyio.move_on_after(0.3):
            await client.messages.create(**BODY, messages=prompt)
    assert time.monotonic() - began < 20  # not the 30 that it was to wait


async def test_a_refusal_and_other_stop_reasons_are_reported(
    client: anthropic.AsyncAnthropic,
) -> None:
    step = '{"text": "no", "stop_reason": "refusal", "usage": {"output_tokens": 7}}'
    prompt = [{"role": "user", "content": f"SCRIPT[{step}]"}]
    async with client.messages.stream(**BODY, messages=prompt) as stream:
        answer = await stream.get_final_message()
    assert (answer.stop_reason, answer.usage.output_tokens) == ("refusal", 7)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "at least one message"),
        ([{"role": "user", "content": " "}], "non-whitespace text"),
        (
            [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}],
                },
                {"role": "user", "content": "next"},
            ],
            "must be followed at once",
        ),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
            "must be followed at once",
        ),
    ],
)
async def test_conversations_the_real_api_would_refuse_are_refused(
    client: anthropic.AsyncAnthropic, messages: list[object], complaint: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=complaint):
        await client.messages.create(**BODY, messages=messages)


async def test_models_and_token_counts_are_served(client: anthropic.AsyncAnthropic) -> None:
    assert [listed.id async for listed in client.models.list()] == ["scripted"]
    prompt = [{"role": "user", "content": "hello"}]
    counted = await client.messages.count_tokens(model="scripted", messages=prompt)
    answer = await client.beta.messages.create(**BODY, messages=prompt)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_key_can_be_required() -> None:
    async with listening(scripted_model(require_key="right"), "127.0.0.1", 0) as url:
        for key, status in (("wrong", 401), ("right", 200)):
            for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
                async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
                    assert (await client.get("/v1/models")).status_code == status


async def test_what_is_not_served_is_refused_in_the_apis_envelope(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url) as client:
        missing = await client.get("/v1/nothing")
        broken = await client.post("/v1/messages", content=b"[1]")
        large = await client.post("/v1/messages", content=b" " * (32 * 1024 * 1024 + 1))
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")


async def test_requests_can_be_looked_at_and_only_so_many_are_kept() -> None:
    model = scripted_model(keep=2)
    async with listening(model, "127.0.0.1", 0) as url, httpx2.AsyncClient(base_url=url) as client:
        for n in range(3):
            await client.post("/v1/messages?beta=true", json={"n": n}, headers={"x-test": "yes"})
    assert [request.body for request in model.requests] == [{"n": 1}, {"n": 2}]
    assert model.requests[0].path == "/v1/messages"
    assert model.requests[0].headers["x-test"] == "yes"


def test_it_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "roost.testing.scripted_model", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = (line for line in process.stderr if "running on" in line)
        url = next(lines).split("running on ")[1].split(" ")[0]
        try:
            assert httpx2.get(f"{url}/v1/models").json()["first_id"] == "scripted"
        finally:
            process.terminate()
