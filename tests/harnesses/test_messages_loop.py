"""The messages harness: what it asks the model for, when an answer is too long, and when the window fills."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from tests.harnesses.messages_session import MessagesSession
from tests.harnesses.strict_model import StrictModel

from roost.builtin_model.app import SeenRequest
from roost.builtin_model.script import Fault
from roost.harnesses.messages.journal import CONTEXT, LEFT_OUT, MOST_CUTS
from roost.harnesses.messages.request import RequestHead
from roost.harnesses.messages.window import ModelWindow
from roost.harnesses.questions import QUESTION
from roost.ports.harness import Conversation, Emit, Output, Show
from roost.serve.http import listening
from roost.testing.in_memory_runner import AGENT, InMemoryRunner, script, with_toolset
from roost.testing.scripted_model import ScriptedModel

FULL = {"input_tokens": 160_000}
END = {"type": "end_turn"}


@pytest.fixture
async def model() -> AsyncGenerator[StrictModel, None]:
    model = StrictModel()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


@pytest.fixture
def harness(model: StrictModel, tmp_path: Path) -> MessagesSession:
    return MessagesSession(model.url, tmp_path)


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "bash", "input": {"command": command}, **more}


def texts_in(message: dict[str, Any]) -> list[str]:
    return [block["text"] for block in message["content"] if block["type"] == "text"]


def kinds_in(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


class Killed(Exception):
    """The end of a runner."""


# A full window


async def test_a_full_conversation_is_summed_up_and_goes_on_with_the_summary(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    first = script({"text": "One.", "usage": FULL}, {"thinking": "Hm.", "text": "The gist."})
    assert await runner.run(runner.say(first)) == END
    assert await runner.run(runner.say(script({"text": "Two."}))) == END
    assert await runner.run(runner.say(script({"text": "Three."}))) == END
    _, summing, went_on, later = [request.body["messages"] for request in model.requests]
    assert [message["role"] for message in summing] == ["user", "assistant", "user"]
    assert "Write a summary" in texts_in(summing[-1])[-1]
    # What was said last stays as it is, behind the summary of what was before.
    (message,) = went_on
    summary, said = texts_in(message)
    assert "The gist." in summary
    assert "Two." in said
    assert "One." not in json.dumps(went_on)
    # It is in the log, so whoever opens the session again begins with it.
    assert later[0] == message
    assert [kinds_in(each) for each in later] == [["text", "text"], ["text"], ["text"]]
    assert len(runner.events("agent.thread_context_compacted")) == 1
    assert len(runner.events(CONTEXT)) == 1
    assert model.refusals == []


async def test_nobody_is_shown_the_summary(harness: MessagesSession) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    steps = [bash("echo x", usage=FULL), {"text": script({"text": "Onwards."})}]
    assert await runner.run(runner.say(script(*steps))) == END
    assert runner.texts() == ["Onwards."]
    shown = "".join(output.text for output in runner.outputs if isinstance(output, Show))
    assert shown == "Onwards."
    assert [entry.fields["is_error"] for entry in runner.events("agent.tool_result")] == [False]


async def test_an_answer_that_the_window_had_no_room_for_is_summed_up(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    said = script(
        {"text": "Onwards."}
    )  # by the summary as well: it is told the conversation as one text
    cut = {"text": said, "stop_reason": "model_context_window_exceeded"}
    assert await runner.run(runner.say(script(cut))) == END
    assert runner.texts() == [said, "Onwards."]
    assert len(runner.events(CONTEXT)) == 1
    assert model.refusals == []


async def test_cut_off_at_each_output_the_conversation_is_summed_up_once(
    harness: MessagesSession, model: StrictModel
) -> None:
    steps = [bash("echo ran >>log", usage=FULL), {"text": script({"text": "Onwards."})}]
    whole = InMemoryRunner(harness, with_toolset())
    await whole.run(whole.say(script(*steps)))
    for cut, output in enumerate(whole.outputs, 1):
        if isinstance(output, Emit):
            runner = InMemoryRunner(harness, with_toolset())
            message = runner.say(script(*steps))
            await runner.run(message, cut=cut)
            assert await runner.run(message, again=True) == END, cut
            assert runner.texts() == ["Onwards."], cut
            assert len(runner.events(CONTEXT)) == 1, cut
            assert model.refusals == []


async def test_a_summary_that_is_empty_is_asked_for_again(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    steps = [{"text": "One.", "usage": FULL}, {"text": " "}]
    assert await runner.run(runner.say(script(*steps))) == END
    assert await runner.run(runner.say("Go on.")) == {"type": "retries_exhausted"}
    assert runner.troubles() == ["retrying"] * 3 + ["exhausted"]
    assert runner.events(CONTEXT) == []


BIG = "head -c 90000 /dev/zero | tr '\\0' x; echo END"


class NarrowModel(StrictModel):
    """Refuses what is longer than so many bytes, as servers of models do."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.too_long = 0

    def seen(self, request: SeenRequest) -> Fault | None:
        if len(json.dumps(request.body.get("messages"))) > self.most:
            self.too_long += 1
            said = "prompt is too long: 210000 tokens > 200000 maximum"
            return Fault(400, type="invalid_request_error", message=said)
        return super().seen(request)


@asynccontextmanager
async def narrow(tmp_path: Path, most: int, **settings: Any) -> AsyncGenerator[Narrow, None]:
    model = NarrowModel(most)
    async with listening(model, "127.0.0.1", 0) as model.url:
        harness = MessagesSession(model.url, tmp_path, **settings)
        yield Narrow(model, InMemoryRunner(harness, with_toolset()))


class Narrow(NamedTuple):
    model: NarrowModel
    runner: InMemoryRunner


async def test_results_that_outgrow_the_window_are_summed_up_from_their_end(tmp_path: Path) -> None:
    """Eight results at once: the model cannot be asked for a summary of all of them, either."""
    async with narrow(tmp_path, 400_000) as (model, runner):
        step = {"text": script({"text": "Onwards."}), "tools": [bash(BIG)] * 8}
        assert await runner.run(runner.say(script(step))) == END
        assert model.too_long == 0
        told = texts_in(model.requests[1].body["messages"][0])[0]
    assert "has outgrown your context window" in told
    assert told.rstrip("]\n").endswith("END")
    assert len(runner.events(CONTEXT)) == 1
    assert model.refusals == []


@pytest.mark.parametrize("again", [False, True])
async def test_a_conversation_that_is_refused_as_too_long_goes_on_with_what_fits(
    tmp_path: Path, again: bool
) -> None:
    """The estimate was wrong. Killed after the refusal is logged, it goes on in the same way."""
    async with narrow(tmp_path, 60_000) as (model, runner):
        message = runner.say(script(bash(BIG)))
        if again:

            async def until_refused(_: Conversation, output: Output) -> None:
                if isinstance(output, Emit) and output.drafts[0].type == LEFT_OUT:
                    raise Killed

            with pytest.raises(Killed):
                await runner.run(message, watch=until_refused)
        assert await runner.run(message, again=again) == END
        assert model.too_long > 0
    assert len(runner.texts()) == 1
    assert len(runner.events(CONTEXT)) == 1
    assert [e.fields["is_error"] for e in runner.events("agent.tool_result")] == [False]
    assert runner.troubles() == []


async def test_a_message_that_is_too_long_is_cut_and_not_refused_for_ever(tmp_path: Path) -> None:
    async with narrow(tmp_path, 60_000) as (model, runner):
        said = f"{script({'text': 'One.'})} {'x' * 90_000}"
        assert await runner.run(runner.say(said)) == END
        assert await runner.run(runner.say(script({"text": "Two."}))) == END
    assert runner.texts()[-1] == "Two."
    assert "left out" in json.dumps(model.requests[-1].body)


async def test_a_server_that_refuses_everything_as_too_long_ends_the_turn(tmp_path: Path) -> None:
    async with narrow(tmp_path, 10) as (model, runner):
        assert await runner.run(runner.say("Hello")) == {"type": "retries_exhausted"}
        assert model.too_long <= 6
        assert await runner.run(runner.say("Hello?")) == {"type": "retries_exhausted"}
    assert runner.troubles() == ["exhausted"]


async def test_a_smaller_window_is_summed_up_sooner_and_answers_are_shorter(tmp_path: Path) -> None:
    async with narrow(tmp_path, 10**9, window=32_000) as (model, runner):
        steps = [
            {"text": "One.", "usage": {"input_tokens": 24_001}},
            {"text": script({"text": "Onwards."})},
        ]
        assert await runner.run(runner.say(script(*steps))) == END
        assert await runner.run(runner.say("Go on.")) == END
    assert len(runner.events(CONTEXT)) == 1
    assert {request.body["max_tokens"] for request in model.requests} == {32_000 // 12}


@given(st.integers(8192, 2_000_000))
def test_every_window_has_room_for_an_answer_and_a_summary_after_it(tokens: int) -> None:
    window = ModelWindow(tokens)
    assert 600 < window.answer <= 16_384
    assert window.full < window.most
    assert window.most + 2 * window.answer < tokens


# What a model has signed


@pytest.mark.parametrize("change", [{"system": "You are another one."}, {"tools": []}])
async def test_thoughts_that_were_signed_for_another_prompt_are_not_sent_back(
    harness: MessagesSession, model: StrictModel, change: dict[str, Any]
) -> None:
    model.minds_thoughts_alone = True
    runner = InMemoryRunner(harness, with_toolset())
    first = script({"thinking": "Hm.", **bash("true")}, {"thinking": "So.", "text": "One."})
    assert await runner.run(runner.say(first)) == END
    runner.change(**change)
    again = {"thinking": "Well.", "text": "Two."}
    assert await runner.run(runner.say(script(again, {"thinking": "Now.", "text": "x"}))) == END
    assert len(runner.events(LEFT_OUT)) == 1
    *_, last = [request.body for request in model.requests]
    assert [kinds_in(message) for message in last["messages"]] == [
        ["text"],
        ["tool_use"],
        ["tool_result"],
        ["text"],
        ["text"],
    ]
    # What was thought since is sent back: it was given to what is sent now.
    assert await runner.run(runner.say(script({"text": "Three."}))) == END
    assert "thinking" in kinds_in(model.requests[-1].body["messages"][5])
    assert len(runner.events(LEFT_OUT)) == 1
    assert model.refusals == []


async def test_thoughts_that_are_refused_all_the_same_are_left_out_once_and_for_all(
    harness: MessagesSession, model: StrictModel
) -> None:
    """Another account's, or another version's of the model: only its server knows."""
    model.minds_thoughts_alone = True
    runner = InMemoryRunner(harness, with_toolset())
    first = script({"thinking": "Hm.", "text": "One."})
    assert await runner.run(runner.say(first)) == END
    model.forget()
    assert await runner.run(runner.say(script({"thinking": "So.", "text": "Two."}))) == END
    assert len(model.refusals) == 1
    assert runner.troubles() == []
    assert await runner.run(runner.say(script({"text": "Three."}))) == END
    assert (len(model.refusals), runner.texts()) == (1, ["One.", "Two.", "Three."])


# An answer that is too long


async def test_an_answer_that_was_cut_for_its_length_goes_on(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    cut = {"thinking": "Hm.", "text": "One,", "stop_reason": "max_tokens"}
    assert await runner.run(runner.say(script(cut, {"text": "two."}))) == END
    assert runner.texts() == ["One,", "two."]
    *_, last = model.requests[-1].body["messages"]
    assert last["role"] == "user"
    assert "too long" in texts_in(last)[-1]
    assert model.refusals == []


async def test_a_call_in_an_answer_that_was_cut_is_not_made(tmp_path: Path) -> None:
    """It may be cut, too. No later answer depends on it, so it need not be sent back."""
    model = ScriptedModel()
    async with listening(model, "127.0.0.1", 0) as url:
        harness = MessagesSession(url, tmp_path)
        runner = InMemoryRunner(harness, with_toolset())
        cut = bash("echo never >never", text="One,", stop_reason="max_tokens")
        assert await runner.run(runner.say(script(cut, {"text": "two."}))) == END
    assert runner.texts() == ["One,", "two."]
    assert runner.events("agent.tool_use") == []
    assert not (harness.workspace / "never").exists()
    _, answer, _ = model.requests[-1].body["messages"]
    assert kinds_in(answer) == ["text"]


async def test_answers_that_are_always_too_long_end_the_turn_and_not_the_session(
    harness: MessagesSession,
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    cuts = [{"text": f"{n},", "stop_reason": "max_tokens"} for n in range(MOST_CUTS + 1)]
    assert await runner.run(runner.say(script(*cuts))) == {"type": "retries_exhausted"}
    assert runner.troubles() == ["exhausted"]
    assert len(runner.texts()) == MOST_CUTS
    assert await runner.run(runner.say(script({"text": "Short."}))) == END
    assert runner.texts()[-1] == "Short."


# Questions


WHICH = {
    "question": "Which?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
}


def ask(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"tool": QUESTION, "input": {"questions": list(questions)}}


async def test_a_question_waits_beside_a_call_that_runs_and_outlives_the_conversation(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    steps = {"tools": [ask(WHICH), bash("echo ran >>log")]}, {"text": "Done."}
    message = runner.say(script(*steps))
    rest = await runner.run(message)
    (call,) = runner.events("agent.custom_tool_use")
    assert call.fields["input"] == {"questions": [WHICH]}
    assert rest == {"type": "requires_action", "event_ids": [call.id]}
    assert await runner.run(message, again=True) == rest
    answer = runner.answer(call.id, '{"answers": {"Which?": "Blue"}}')
    assert await runner.run(answer) == END
    assert (harness.workspace / "log").read_text() == "ran\n"
    _, _, results = model.requests[-1].body["messages"]
    assert [block["type"] for block in results["content"]] == ["tool_result"] * 2
    assert "Blue" in results["content"][0]["content"][0]["text"]
    assert model.refusals == []


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [{**WHICH, "options": []}],
        [{**WHICH, "question": ""}],
        [{**WHICH, "options": ["Red", "Blue"]}],
        [WHICH] * 5,
    ],
)
async def test_a_question_that_no_client_can_show_is_told_to_the_model_and_to_nobody_else(
    harness: MessagesSession, model: StrictModel, wrong: list[dict[str, Any]]
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    assert await runner.run(runner.say(script(ask(*wrong), {"text": "Well."}))) == END
    (result,) = runner.events("agent.tool_result")
    assert result.fields["is_error"]
    assert "AskUserQuestion was not run: " in result.fields["content"][0]["text"]
    assert (runner.pending, model.refusals) == ([], [])


async def test_a_question_that_nobody_answers_is_an_error_with_words(
    harness: MessagesSession, model: StrictModel
) -> None:
    """The API refuses an error that says nothing, and would refuse it for ever."""
    runner = InMemoryRunner(harness, with_toolset())
    await runner.run(runner.say(script(ask(WHICH), {"text": "Well."})))
    (call,) = runner.events("agent.custom_tool_use")
    assert await runner.run(runner.answer(call.id, "", is_error=True)) == END
    (result,) = model.requests[-1].body["messages"][-1]["content"]
    assert result["is_error"]
    assert result["content"][0]["text"].strip()


@pytest.mark.parametrize("agent", [AGENT, {**AGENT, "tools": []}])
async def test_an_agent_without_the_toolset_asks_nobody(
    harness: MessagesSession, model: StrictModel, agent: dict[str, Any]
) -> None:
    runner = InMemoryRunner(harness, agent)
    assert await runner.run(runner.say(script(ask(WHICH), {"text": "Well."}))) == END
    offered = [tool["name"] for tool in model.requests[0].body.get("tools", [])]
    assert QUESTION not in offered
    (result,) = runner.events("agent.tool_result")
    assert "no such tool" in result.fields["content"][0]["text"]


# Marks for the cache


BLOCKS = st.sampled_from(
    [b'{"type":"text","text":"x"}', b'{"signature":"s","type":"thinking","thinking":"x"}']
)


def marks_of(blocks: list[bytes]) -> list[int]:
    """Where a request with these blocks has marks; the last is that of the whole."""
    head = RequestHead(AGENT, "", [], ModelWindow())
    body = msgspec.json.decode(head.request([("user", [block]) for block in blocks]))
    assert body["cache_control"] == {"type": "ephemeral"}
    found = []
    for number, message in enumerate(body["messages"]):
        (block,) = message["content"]
        if "cache_control" in block:
            assert block["type"] != "thinking", "the API refuses that"
            found.append(number)
    return [*found, len(blocks) - 1]


@given(st.lists(BLOCKS, min_size=1, max_size=120))
def test_a_request_has_four_marks_at_most_and_none_on_a_thought(blocks: list[bytes]) -> None:
    assert len(marks_of(blocks)) <= 4


@given(st.integers(1, 80), st.integers(0, 60), st.sets(st.integers(0, 140), max_size=20))
def test_what_was_sent_before_is_within_the_reach_of_a_mark(
    before: int, added: int, alone: set[int]
) -> None:
    """The cache looks 20 blocks back from a mark. Thoughts stand alone: something is said or called after each."""
    thoughts = {n for n in alone if n - 1 not in alone}
    text, thought = b'{"type":"text","text":"x"}', b'{"type":"thinking","thinking":"x"}'
    blocks = [thought if n in thoughts else text for n in range(before + added)]
    assert any(mark - 20 <= before - 1 <= mark for mark in marks_of(blocks))


async def test_marks_move_and_what_they_mark_stays(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    read = {"tool": "bash", "input": {"command": "true"}}
    steps = [{"thinking": "Hm.", "text": "Now.", "tools": [read] * 6} for _ in range(5)]
    assert await runner.run(runner.say(script(*steps, {"text": "Done."}))) == END
    counts = [
        sum("cache_control" in block for m in r.body["messages"] for block in m["content"])
        for r in model.requests
    ]
    assert counts == [0, 0, 1, 2, 3, 3]
    assert model.refusals == []


# A search of the model's server


SEARCH = [
    {"type": "text", "text": "Let me look."},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result",
                "title": "Python",
                "url": "https://python.example",
                "encrypted_content": "c2VjcmV0",
            }
        ],
    },
    {"type": "text", "text": "It is a language."},
]


class Searching:
    """A model whose server searches: one answer of blocks after another, and what it was asked."""

    def __init__(self, *answers: tuple[str, list[dict[str, Any]]]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        self.requests.append(json.loads(body))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in frames(*self.answers.pop(0)):
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def frames(stop_reason: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1}}}
    ]
    for index, block in enumerate(blocks):
        begun = {**block, "text": ""} if block["type"] == "text" else block
        found.append({"type": "content_block_start", "index": index, "content_block": begun})
        delta: dict[str, Any] | None = None
        if block["type"] == "text":
            delta = {"type": "text_delta", "text": block["text"]}
        elif block["type"] == "server_tool_use":
            delta = {"type": "input_json_delta", "partial_json": '{"query": "python"}'}
        if delta is not None:
            found.append({"type": "content_block_delta", "index": index, "delta": delta})
        found.append({"type": "content_block_stop", "index": index})
    found.append({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {}})
    return [*found, {"type": "message_stop"}]


async def searched(
    tmp_path: Path, agent: dict[str, Any], *answers: tuple[str, list[dict[str, Any]]]
) -> tuple[InMemoryRunner, Searching]:
    model = Searching(*answers, ("end_turn", [{"type": "text", "text": "Yes."}]))
    async with listening(model, "127.0.0.1", 0) as url:
        runner = InMemoryRunner(MessagesSession(url, tmp_path, web_search=True), agent)
        assert await runner.run(runner.say("Look.")) == END
        assert await runner.run(runner.say("And?")) == END
    return runner, model


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_search_is_shown_as_a_call_with_its_result_and_is_sent_back_to_the_letter(
    tmp_path: Path, is_paused: bool
) -> None:
    place = {"type": "approximate", "city": "Bern", "country": "CH", "region": "Bern"}
    limits = {
        "blocked_domains": ["a.example"],
        "user_location": {**place, "timezone": "Europe/Zurich"},
    }
    config = {
        "name": "web_search",
        "enabled": True,
        "permission_policy": {"type": "always_allow"},
        **limits,
    }
    answers = [("pause_turn", SEARCH[:2]), ("end_turn", SEARCH[2:])] if is_paused else []
    runner, model = await searched(
        tmp_path, with_toolset("always_ask", config), *(answers or [("end_turn", SEARCH)])
    )
    offered = {tool["name"]: tool for tool in model.requests[0]["tools"]}
    assert offered["web_search"] == {
        "type": "web_search_20250305",
        "name": "web_search",
        **limits,
    }
    (call,) = runner.events("agent.tool_use")
    assert call.fields["name"] == "web_search"
    assert call.fields["input"] == ({} if is_paused else {"query": "python"})
    (result,) = runner.events("agent.tool_result")
    assert result.fields["tool_use_id"] == call.id
    assert result.fields["content"][0]["text"] == "Python\nhttps://python.example"
    assert runner.texts() == ["Let me look.", "It is a language.", "Yes."]
    said = [block for m in model.requests[-1]["messages"] for block in m["content"]]
    query = {**SEARCH[1], "input": {"query": "python"}}
    kept = [SEARCH[0], query, *SEARCH[2:]]
    assert said[1:-1] == kept


async def test_a_search_that_needs_permission_is_not_offered(tmp_path: Path) -> None:
    _, model = await searched(tmp_path, with_toolset("always_ask"), ("end_turn", SEARCH[:1]))
    assert "web_search" not in [tool["name"] for tool in model.requests[0]["tools"]]


async def test_a_search_is_not_offered_where_the_models_server_has_none(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset())
    assert await runner.run(runner.say(script({"text": "Hello."}))) == END
    offered = [tool["name"] for tool in model.requests[0].body["tools"]]
    assert "web_fetch" in offered
    assert "web_search" not in offered
