"""The scripted harness: the contract, and what is its own."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

from roost.domain.events import Draft
from roost.harnesses import messages_api, scripted
from roost.harnesses.message_history import MessageHistory
from roost.harnesses.messages_api import ModelAnswer
from roost.harnesses.retries import ModelFailure, asked_to_wait, pause
from roost.harnesses.scripted import ScriptedHarness
from roost.ports.drafts import new_draft
from roost.ports.harness import Conversation, Emit, Output, Show, Trouble
from roost.serve.http import listening
from roost.testing.harness_contract import HarnessContract
from roost.testing.in_memory_runner import AGENT, InMemoryRunner, script
from roost.testing.null_parts import model_at
from roost.testing.scripted_model import ScriptedModel

KEY = "sk-not-for-the-log"


def harness_for(url: str, **settings: Any) -> ScriptedHarness:
    return ScriptedHarness(model_at(url, KEY), **{"retries": 3, "retry_seconds": 0.001, **settings})


@pytest.fixture
async def model() -> AsyncGenerator[ScriptedModel, None]:
    model = ScriptedModel()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


@pytest.fixture
def runner(model: ScriptedModel) -> InMemoryRunner:
    return InMemoryRunner(harness_for(model.url))


class TestScriptedHarness(HarnessContract):
    @pytest.fixture
    async def model(self) -> AsyncGenerator[ScriptedModel, None]:
        model = ScriptedModel()
        async with listening(model, "127.0.0.1", 0) as model.url:
            yield model

    @pytest.fixture
    def harness(self, model: ScriptedModel) -> ScriptedHarness:
        return harness_for(model.url)


def step_that_fails(status: int, kind: str | None = None, **more: Any) -> str:
    return script({"text": "never", "error": {"status": status, "type": kind, **more}})


# --- what the model is told


async def test_the_model_is_asked_as_the_agent_is_configured(model: ScriptedModel) -> None:
    needs = {**AGENT["tools"][0]["input_schema"], "required": ["what"]}
    tool = {**AGENT["tools"][0], "input_schema": needs}
    runner = InMemoryRunner(harness_for(model.url), {**AGENT, "tools": [tool]})
    await runner.run(runner.say("hello"))
    request = model.requests[-1]
    assert request.body["model"] == "scripted"
    assert request.body["system"] == "You are being tested."
    offered = {name: tool[name] for name in ("name", "description", "input_schema")}
    assert request.body["tools"] == [offered]
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"


async def test_an_agent_without_tools_and_system_prompt_is_fine(model: ScriptedModel) -> None:
    runner = InMemoryRunner(
        harness_for(model.url), {"model": {"id": "m"}, "system": None, "tools": []}
    )
    await runner.run(runner.say("hello"))
    assert not {"system", "tools"} & model.requests[-1].body.keys()


async def test_one_client_can_serve_all_conversations(model: ScriptedModel) -> None:
    async with httpx2.AsyncClient() as client:
        for _ in range(2):
            runner = InMemoryRunner(harness_for(model.url, client=client))
            assert await runner.run(runner.say("hello")) == {"type": "end_turn"}
        assert not client.is_closed


async def test_a_tool_of_the_agents_own_is_refused_and_the_model_is_told(
    model: ScriptedModel, runner: InMemoryRunner
) -> None:
    await runner.run(
        runner.say(script({"tool": "Bash", "input": {"command": "date"}}, {"text": "ok"}))
    )
    (call,) = runner.events("agent.tool_use")
    (result,) = runner.events("agent.tool_result")
    assert call.fields["evaluated_permission"] == "deny"
    assert result.fields["tool_use_id"] == call.id
    assert result.fields["is_error"]
    assert "Bash was not run" in result.fields["content"][0]["text"]
    told = model.requests[-1].body["messages"][-1]["content"][0]
    assert (told["tool_use_id"], told["is_error"]) == (call.id, True)


async def test_thinking_is_shown_as_progress_and_keeps_its_text_to_itself(
    runner: InMemoryRunner,
) -> None:
    await runner.run(runner.say(script({"thinking": "secret plan", "text": "ok"})))
    (thinking,) = runner.events("agent.thinking")
    assert Show(thinking.id, "agent.thinking") in runner.outputs
    assert thinking.fields == {}


async def test_all_of_an_answer_is_one_commit(runner: InMemoryRunner) -> None:
    step = {"thinking": "a", "text": "b", "tools": [{"tool": "lookup"}, {"tool": "Bash"}]}
    await runner.run(runner.say(script(step)))
    first, second = (output for output in runner.outputs if isinstance(output, Emit))
    assert [draft.type for draft in first.drafts] == ["span.model_request_start"]
    assert [draft.type for draft in second.drafts] == [
        "agent.thinking",
        "agent.message",
        "agent.custom_tool_use",
        "agent.tool_use",
        "span.model_request_end",
        "agent.tool_result",
    ]


async def test_a_model_that_calls_tools_for_ever_is_stopped(
    runner: InMemoryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "_MAX_REQUESTS", 3)
    steps = [{"tool": "Bash"}] * 9
    assert await runner.run(runner.say(script(*steps))) == {"type": "retries_exhausted"}
    trouble = runner.outputs[-2]
    assert isinstance(trouble, Trouble)
    assert (trouble.error, trouble.retry) == ("tool_use_limit_reached_error", "exhausted")


# --- failures


@pytest.mark.parametrize(
    ("status", "kind", "error", "retry"),
    [
        (400, None, "model_request_failed_error", "exhausted"),
        (401, None, "model_request_failed_error", "exhausted"),
        (402, None, "billing_error", "exhausted"),
        (403, None, "model_request_failed_error", "exhausted"),
        (404, None, "model_request_failed_error", "exhausted"),
        (413, "request_too_large", "model_request_failed_error", "exhausted"),
        (413, "entity_too_large", "model_request_failed_error", "exhausted"),
    ],
)
async def test_a_failure_that_time_does_not_mend_is_not_retried(
    runner: InMemoryRunner, status: int, kind: str | None, error: str, retry: str
) -> None:
    prompt = step_that_fails(status, kind, message="because of this")
    assert await runner.run(runner.say(prompt)) == {"type": "retries_exhausted"}
    (trouble,) = (output for output in runner.outputs if isinstance(output, Trouble))
    assert (trouble.error, trouble.retry) == (error, retry)
    assert "because of this" in trouble.message


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_names_the_setting_to_fix(runner: InMemoryRunner, status: int) -> None:
    await runner.run(runner.say(step_that_fails(status)))
    (event,) = runner.events("session.error")
    assert "ANTHROPIC_API_KEY" in event.fields["error"]["message"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (408, "model_request_failed_error"),
        (409, "model_request_failed_error"),
        (429, "model_rate_limited_error"),
        (500, "model_request_failed_error"),
        (503, "model_request_failed_error"),
        (529, "model_overloaded_error"),
    ],
)
async def test_a_failure_that_may_pass_is_retried(
    runner: InMemoryRunner, status: int, error: str
) -> None:
    await runner.run(runner.say(step_that_fails(status)))
    troubles = [output for output in runner.outputs if isinstance(output, Trouble)]
    assert [trouble.error for trouble in troubles] == [error] * 4
    assert runner.troubles() == ["retrying"] * 3 + ["exhausted"]


async def test_a_span_ends_before_the_failure_is_told(runner: InMemoryRunner) -> None:
    # Otherwise the span's end would look like the session had recovered, before the pause.
    await runner.run(runner.say(step_that_fails(500)))
    kinds = [type(output).__name__ for output in runner.outputs]
    assert kinds == ["Emit", "Emit", "Trouble"] * 4 + ["TurnEnd"]


async def test_a_model_that_is_not_there_is_a_failure_that_may_pass(runner: InMemoryRunner) -> None:
    gone = InMemoryRunner(harness_for("http://127.0.0.1:9"))
    assert await gone.run(gone.say("hello")) == {"type": "retries_exhausted"}
    assert gone.troubles() == ["retrying"] * 3 + ["exhausted"]


async def test_a_pause_the_model_asks_for_is_kept(runner: InMemoryRunner) -> None:
    began = time.monotonic()
    headers = {"retry-after-ms": "300"}
    await runner.run(runner.say(step_that_fails(429, times=1, headers=headers)))
    assert time.monotonic() - began > 0.3
    assert runner.texts() == ["never"]


async def test_an_interrupt_ends_the_pause(runner: InMemoryRunner) -> None:
    async def interrupt(conversation: Conversation, output: Output) -> None:
        if isinstance(output, Trouble):
            tasks.start_soon(_after_a_moment, conversation)

    prompt = step_that_fails(429, headers={"retry-after": "600"})
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            assert await runner.run(runner.say(prompt), watch=interrupt) == {"type": "end_turn"}
    assert runner.troubles() == ["retrying"]


async def _after_a_moment(conversation: Conversation) -> None:
    await anyio.sleep(0.1)
    await conversation.interrupt()


async def test_a_call_that_an_interrupt_cut_short_was_not_made() -> None:
    body = (
        START
        + event(type="content_block_start", index=0, content_block={"type": "tool_use"})
        + event(type="content_block_delta", index=0, delta={"partial_json": '{"half'})
        + event(type="content_block_start", index=1, content_block={"type": "text"})
        + event(type="content_block_delta", index=1, delta={"text": "I will"})
    )

    async def interrupt(conversation: Conversation, output: Output) -> None:
        if isinstance(output, Show) and output.text:
            await conversation.interrupt()

    async with listening(app_that_sends(body), "127.0.0.1", 0) as url:
        runner = InMemoryRunner(harness_for(url))
        assert await runner.run(runner.say("go"), watch=interrupt) == {"type": "end_turn"}
    assert runner.conversation[1:] == [
        ("agent.message", '{"content": [{"text": "I will", "type": "text"}]}')
    ]
    assert runner.spent.input_tokens == 5


async def test_an_interrupt_right_after_a_call_ends_the_wait_for_its_result(
    runner: InMemoryRunner,
) -> None:
    async def interrupt(conversation: Conversation, output: Output) -> None:
        if isinstance(output, Emit) and output.blocks:
            await conversation.interrupt()

    async with runner.open() as conversation:
        message = runner.say(script({"tool": "lookup"}))
        assert await runner.turn(conversation, [message], watch=interrupt) == {"type": "end_turn"}
        runner.interrupted()
        await runner.turn(conversation, [runner.say(script({"text": "Onwards."}))])
    assert runner.texts() == ["Onwards."]


async def test_a_late_interrupt_does_not_end_the_next_turn(runner: InMemoryRunner) -> None:
    async with runner.open() as conversation:
        await runner.turn(conversation, [runner.say(script({"text": "one"}))])
        await conversation.interrupt()
        await runner.turn(conversation, [runner.say(script({"text": "two"}))])
    assert runner.texts() == ["one", "two"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e9"}, 600.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
    ],
)
def test_the_time_to_wait_is_read_from_the_headers(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert asked_to_wait(headers) == seconds


def test_pauses_double_up_to_a_limit_and_are_never_shorter_than_asked() -> None:
    pauses = [pause(tries, 0.5, None) for tries in range(1, 200)]
    assert all(0.375 * 2**n <= pauses[n] <= 0.5 * 2**n for n in range(6))
    assert max(pauses) <= 60
    assert pause(1, 0.5, 30.0) == 30.0


# --- answers that are not to be believed


def app_that_sends(body: bytes, *, status: int = 200, kind: bytes = b"text/event-stream") -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def event(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


START = event(type="message_start", message={"usage": {"input_tokens": 5}})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"data: {\n\n",
        b'data: "\\ud800"\n\n',
        event(type="message_start"),
        event(kind="?"),
        event(type="content_block_start", index=0, content_block=None),
        START + event(type="message_delta", delta=[]),
        START,
        START
        + event(type="content_block_start", index=0, content_block={"type": "tool_use"})
        + event(type="content_block_delta", index=0, delta={"partial_json": "[1"})
        + event(type="message_stop"),
        event(type="error", error={"type": "overloaded_error", "message": "busy"}),
        event(type="error", error="?"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_failure(body: bytes) -> None:
    async with listening(app_that_sends(body), "127.0.0.1", 0) as url:
        runner = InMemoryRunner(harness_for(url, retries=1))
        assert await runner.run(runner.say("hello")) == {"type": "retries_exhausted"}
    assert runner.troubles() == ["retrying", "exhausted"]
    assert runner.texts() == []


async def test_a_page_of_some_proxy_is_quoted_in_the_failure() -> None:
    app = app_that_sends(b"<h1>Bad gateway</h1>" + b"x" * 200_000, status=502, kind=b"text/html")
    async with listening(app, "127.0.0.1", 0) as url:
        runner = InMemoryRunner(harness_for(url, retries=0))
        await runner.run(runner.say("hello"))
    (trouble,) = runner.events("session.error")
    assert "Bad gateway" in trouble.fields["error"]["message"]
    assert len(trouble.body) < 1000


async def test_an_answer_without_end_is_cut_off(
    runner: InMemoryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_api, "MAX_ANSWER", 1000)
    rest = await runner.run(runner.say(script({"text": "word " * 1000})))
    assert rest == {"type": "retries_exhausted"}
    (trouble,) = (output for output in runner.outputs if isinstance(output, Trouble))
    assert (trouble.retry, trouble.message) == (
        "exhausted",
        "The model's answer is longer than 1,000 characters.",
    )
    assert runner.texts() == []


def test_parts_of_an_answer_that_are_not_known_are_left_out() -> None:
    answer = ModelAnswer()
    answer.add({"type": "content_block_start", "index": 0, "content_block": {"type": "server"}})
    answer.add({"type": "content_block_delta", "index": 0, "delta": {"text": "x"}})
    answer.add({"type": "ping"})
    assert answer.parts == []
    with pytest.raises(ModelFailure):
        answer.add({"type": "content_block_delta", "index": [], "delta": {}})


async def test_the_key_is_never_in_the_log(runner: InMemoryRunner) -> None:
    bad = InMemoryRunner(
        ScriptedHarness(model_at("http://127.0.0.1:9", f"{KEY}\n"), retries=0, retry_seconds=0.001)
    )
    await bad.run(bad.say("hello"))
    await runner.run(runner.say(step_that_fails(401, message=f"no such key: {KEY}")))
    for entry in bad.events("session.error") + runner.events("session.error"):
        assert KEY.encode() not in entry.body


# --- the fold


def folded(*events: Draft) -> MessageHistory:
    transcript = MessageHistory()
    for each in events:
        transcript.take(each)
    return transcript


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def test_one_sides_messages_in_a_row_become_one() -> None:
    transcript = folded(
        new_draft("user.message", content=text("a")),
        new_draft("user.message", content=text("b")),
        new_draft("span.model_request_start"),
        new_draft("agent.message", content=text("c")),
        new_draft("agent.message", content=text("d")),
    )
    assert transcript.messages() == [
        {"role": "user", "content": text("a") + text("b")},
        {"role": "assistant", "content": text("c") + text("d")},
    ]


def test_an_event_is_taken_once() -> None:
    message = new_draft("user.message", content=text("a"))
    assert folded(message, message).messages() == [{"role": "user", "content": text("a")}]


def test_results_stand_right_after_their_calls_however_late_they_come() -> None:
    call = new_draft("agent.custom_tool_use", name="lookup", input={})
    transcript = folded(
        new_draft("user.message", content=text("a")),
        new_draft("span.model_request_start"),
        call,
        new_draft("user.message", content=text("b")),
        new_draft("system.message", content=text("note")),
        new_draft(
            "user.custom_tool_result", custom_tool_use_id=call.id, content=text("r"), is_error=True
        ),
    )
    _, assistant, answer, system = transcript.messages()
    assert [block["type"] for block in assistant["content"]] == ["tool_use"]
    assert [block["type"] for block in answer["content"]] == ["tool_result", "text"]
    assert answer["content"][0]["is_error"]
    assert system == {"role": "system", "content": text("note")}
    assert (transcript.waiting, transcript.due) == ([], True)


def test_a_call_without_a_result_is_said_to_be_unknown() -> None:
    transcript = folded(
        new_draft("user.message", content=text("a")),
        new_draft("agent.tool_use", name="Bash", input={}),
        new_draft("user.message", content=text("b")),
    )
    result = transcript.messages()[2]["content"][0]
    assert result["is_error"]
    assert "outcome is unknown" in result["content"][0]["text"]


def test_a_result_for_an_unknown_or_answered_call_changes_nothing() -> None:
    call = new_draft("agent.custom_tool_use", name="lookup", input={})
    first, second = (
        new_draft("user.custom_tool_result", custom_tool_use_id=call.id, content=text(words))
        for words in ("first", "second")
    )
    stray = new_draft("user.custom_tool_result", custom_tool_use_id="sevt_other", content=None)
    transcript = folded(new_draft("user.message", content=text("a")), call, first, second, stray)
    (result,) = transcript.messages()[-1]["content"]
    assert result["content"] == text("first")


def test_what_was_cut_off_by_an_interrupt_is_not_waited_for() -> None:
    transcript = folded(
        new_draft("user.message", content=text("a")),
        new_draft("agent.custom_tool_use", name="lookup", input={}),
        new_draft("user.interrupt"),
    )
    assert (transcript.waiting, transcript.due) == ([], False)


def test_pictures_and_documents_are_passed_on_and_what_cannot_be_is_named() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    page = {"type": "document", "source": {"type": "url", "url": "https://a.test"}, "title": None}
    plain = {"type": "text", "media_type": "text/plain", "data": "hello"}
    note = {"type": "document", "source": plain, "title": "note", "context": "from a friend"}
    stored = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    content = [image, page, note, stored, {"type": "redacted"}, *text(" ")]
    (message,) = folded(new_draft("user.message", content=content)).messages()
    assert message["content"] == [
        image,
        {"type": "document", "source": page["source"]},
        note,
        *text("[image: this agent cannot look at it]"),
        *text("[redacted: this agent cannot look at it]"),
    ]


def test_search_results_of_a_client_are_passed_on_as_they_are() -> None:
    call = new_draft("agent.custom_tool_use", name="lookup", input={})
    found = {
        "type": "search_result",
        "source": "https://a.test",
        "title": "A",
        "content": [{"type": "text", "text": "a"}],
        "citations": {"enabled": True},
    }
    history = folded(
        new_draft("user.message", content=text("a")),
        new_draft("span.model_request_start"),
        call,
        new_draft("user.custom_tool_result", custom_tool_use_id=call.id, content=[found]),
    )
    (result,) = history.messages()[-1]["content"]
    assert result["content"] == [found]


def test_an_empty_message_is_still_a_message() -> None:
    (message,) = folded(new_draft("user.message", content=text("  "))).messages()
    assert message["content"] == text("(an empty message)")


async def test_a_system_message_reaches_the_model_in_its_place(
    model: ScriptedModel, runner: InMemoryRunner
) -> None:
    await runner.run(runner.say("hello"), runner.say("be brief", type="system.message"))
    assert [entry["role"] for entry in model.requests[-1].body["messages"]] == ["user", "system"]
