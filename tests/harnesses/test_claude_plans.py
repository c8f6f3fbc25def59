"""How the claude harness goes on from a log and a transcript that do not agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.harnesses.claude_parts import IDS, agent, calls_of, custom, entry, toolset

from roost.domain.events import Draft, Entry
from roost.domain.usage import Usage
from roost.harnesses.claude.calls import ToolCalls
from roost.harnesses.claude.recovery import Recovery, StartPlan
from roost.harnesses.claude.transcript import CliTranscript, TranscriptLine
from roost.harnesses.claude.wire import CanUseTool, McpMessage, MessageFrame, convert
from roost.harnesses.logged_past import LoggedPast, messages_in
from roost.ports.drafts import new_event_id
from roost.ports.harness import Emit

HELLO = entry("user.message", content=[{"type": "text", "text": "Hello."}])
MORE = entry("user.message", content=[{"type": "text", "text": "More."}])
BUILT = [{"type": "text", "text": "built"}]
USAGE = {"input_tokens": 7, "output_tokens": 3}


def line(type: str, uuid: str, content: Any, **message: Any) -> TranscriptLine:
    frame = {"type": type, "uuid": uuid, "message": {"content": content, **message}}
    return TranscriptLine(uuid, frame, convert(frame, MessageFrame))


def prompt(*inputs: Entry) -> TranscriptLine:
    return line("user", IDS.prompt(inputs), "what was said")


def text(said: str, message_id: str) -> TranscriptLine:
    block = {"type": "text", "text": said}
    return line("assistant", f"u-{message_id}", [block], id=message_id, usage=USAGE)


def call(tool_use_id: str, name: str = "Bash", **given: Any) -> TranscriptLine:
    block = {"type": "tool_use", "id": tool_use_id, "name": name, "input": given}
    return line("assistant", f"u-{tool_use_id}", [block], id=f"m-{tool_use_id}", usage=USAGE)


def result(tool_use_id: str) -> TranscriptLine:
    block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": "ok"}
    return line("user", f"r-{tool_use_id}", [block])


def logged(type: str, id: str | None = None, /, **fields: Any) -> Entry:
    draft = Draft.of(type, id or new_event_id(), **fields)
    return Entry(1, draft.id, draft.type, draft.body, 0)


def said_before(text: str, message_id: str) -> list[Entry]:
    """An answer that is in the log, with its span."""
    start = logged("span.model_request_start")
    end = logged("span.model_request_end", model_request_start_id=start.id, is_error=False)
    content = [{"type": "text", "text": text}]
    return [start, logged("agent.message", IDS.block(message_id, "text", 0), content=content), end]


def called_before(tool_use_id: str, name: str = "bash", **given: Any) -> Entry:
    return logged("agent.tool_use", IDS.call(tool_use_id), name=name, input=given)


def plan(
    log: Sequence[Entry],
    lines: Sequence[TranscriptLine],
    *inputs: Entry,
    again: bool = True,
    behind: bool = False,
    tools: Sequence[dict[str, Any]] = (toolset(),),
) -> tuple[StartPlan, ToolCalls]:
    calls = calls_of(agent(*tools))
    prompts = [one for one in lines if one.is_prompt]
    transcript = CliTranscript(lines, prompts[-1]) if prompts else None
    messages = messages_in(inputs)
    heard = transcript is None or transcript.has(IDS.prompt(messages))
    past = LoggedPast(() if heard else {entry.id for entry in messages})
    for one in log:
        past.take(one)
    recovery = Recovery(IDS, calls, past, inputs, again=again, behind=behind)
    if transcript is None:
        return recovery.without_transcript(), calls
    return recovery.with_transcript(transcript), calls


def types(plan: StartPlan) -> list[str]:
    return [draft.type for emit in plan.emits for draft in emit.drafts]


def spent(emits: Sequence[Emit]) -> list[Usage]:
    return [emit.spent for emit in emits if emit.spent is not None]


def test_an_answer_that_only_the_transcript_has_is_logged_and_paid_for():
    made, _ = plan([HELLO], [prompt(HELLO), text("Hi.", "m1")], HELLO)
    assert types(made) == ["span.model_request_start", "agent.message", "span.model_request_end"]
    assert spent(made.emits) == [Usage(7, 3)]
    assert made.goes_on
    assert made.prompt.uuid == IDS.prompt([HELLO])


def test_an_answer_whose_span_was_left_open_gets_its_end():
    start, message, _ = said_before("Hi.", "m1")
    made, _ = plan([HELLO, start, message], [prompt(HELLO), text("Hi.", "m1")], HELLO)
    assert types(made) == ["span.model_request_end"]
    assert spent(made.emits) == [Usage(7, 3)]


def test_what_both_have_is_neither_logged_nor_paid_for_twice():
    log = [HELLO, *said_before("Hi.", "m1"), called_before("t1")]
    made, _ = plan(log, [prompt(HELLO), text("Hi.", "m1")], HELLO)
    assert "agent.message" not in types(made)
    assert spent(made.emits) == []


def test_a_message_the_agent_has_not_heard_does_not_bring_up_the_turn_before_it():
    lines = [prompt(HELLO), text("Hi.", "m1")]
    begun = logged("span.model_request_start")
    made, _ = plan([HELLO, *said_before("Hi.", "m1"), MORE, begun], lines, MORE)
    assert types(made) == ["span.model_request_end"]
    assert spent(made.emits) == []
    assert made.resume
    assert not made.goes_on
    assert made.prompt.uuid == IDS.prompt([MORE])
    assert made.prompt.content == [{"type": "text", "text": "More."}]


def test_what_the_agent_has_forgotten_is_told_with_the_message():
    lines = [prompt(HELLO), text("Hi.", "m1")]
    log = [HELLO, *said_before("Hi.", "m1"), MORE, *said_before("Gone.", "m2"), called_before("t2")]
    made, calls = plan(log, lines, MORE)
    note = made.prompt.content[0]
    assert isinstance(note, dict)
    assert "You said: Gone." in note["text"]
    assert "You called bash" in note["text"]
    assert "Hi." not in note["text"]
    assert types(made) == ["agent.tool_result"], "nobody knows what became of that call"
    first = calls.permission("r1", CanUseTool("Bash", "t8", {}))
    again = calls.permission("r2", CanUseTool("Bash", "t9", {}))
    assert first is not None
    assert again is not None
    assert (first.response["behavior"], again.response["behavior"]) == ("deny", "allow")


def test_a_result_that_only_the_transcript_has_is_logged():
    log = [HELLO, called_before("t1", command="ls")]
    made, _ = plan(log, [prompt(HELLO), call("t1", command="ls"), result("t1")], HELLO)
    (emit,) = [emit for emit in made.emits if emit.drafts[0].type == "agent.tool_result"]
    assert emit.drafts[0].id == IDS.result("t1")


def test_a_result_that_only_the_log_has_is_told_and_not_replaced():
    done = logged("agent.tool_result", IDS.result("t1"), tool_use_id=IDS.call("t1"), content=[])
    log = [HELLO, called_before("t1", command="ls"), done]
    made, _ = plan(log, [prompt(HELLO), call("t1", command="ls")], HELLO)
    assert "agent.tool_result" not in types(made)
    assert made.mark is None
    assert 'bash {"command": "ls"} returned' in made.environ["CLAUDE_CODE_RESUME_PROMPT"]


def test_a_call_the_agent_has_forgotten_is_not_made_twice_just_like_that():
    content = [{"type": "text", "text": "42 files"}]
    done = logged("agent.tool_result", tool_use_id=IDS.call("t1"), content=content)
    log = [HELLO, called_before("t1", command="ls"), done]
    _, calls = plan(log, [prompt(HELLO)], HELLO)
    reply = calls.permission("r1", CanUseTool("Bash", "t2", {"command": "ls"}))
    assert reply is not None
    assert reply.response["behavior"] == "deny"
    assert "42 files" in reply.response["message"]


def test_a_call_that_was_allowed_is_not_put_up_again():
    log = [HELLO, called_before("t1", command="ls")]
    made, calls = plan(log, [prompt(HELLO), call("t1", command="ls")], HELLO)
    assert made.mark is None
    assert types(made)[-1] == "agent.tool_result"
    assert calls.open == {}


def test_a_call_that_waits_is_put_up_again_and_those_behind_it_are_expected():
    lines = [prompt(HELLO), call("t1", command="a"), call("t2", command="b")]
    asks = [toolset("always_ask")]
    log = [HELLO, called_before("t1", command="a"), called_before("t2", command="b")]
    made, calls = plan(log, lines, HELLO, tools=asks)
    assert made.mark is not None
    assert b'"toolUseID":"t1"' in made.mark
    assert "Bash" in made.environ["CLAUDE_CODE_RESUME_PROMPT"]
    assert list(calls.open) == ["t1"]
    again, new = calls.make("t3", "Bash", {"command": "b"})
    assert (again.event_id, new) == (IDS.call("t2"), False)


def test_an_allowed_call_is_put_up_once_and_after_a_crash_not_again():
    lines = [prompt(HELLO), call("t1", command="a")]
    asks = [toolset("always_ask")]
    yes = entry("user.tool_confirmation", tool_use_id=IDS.call("t1"), result="allow")
    log = [HELLO, called_before("t1", command="a"), yes]
    first, _ = plan(log, lines, yes, again=False, tools=asks)
    assert first.mark is not None
    second, _ = plan(log, lines, yes, again=True, tools=asks)
    assert second.mark is None
    no = entry("user.tool_confirmation", tool_use_id=IDS.call("t1"), result="deny")
    refused, _ = plan([*log[:2], no], lines, no, again=True, tools=asks)
    assert refused.mark is not None, "a refusal can be given as often as one likes"


def test_answers_come_before_a_message_that_was_sent_with_them():
    lines = [prompt(HELLO), call("t1", "lookup")]
    asked = logged("agent.custom_tool_use", IDS.call("t1"), name="lookup", input={})
    answer = entry("user.custom_tool_result", custom_tool_use_id=IDS.call("t1"), content=[])
    calls = calls_of(agent(custom("lookup")))
    past = LoggedPast({MORE.id})
    for one in (HELLO, asked, answer, MORE):
        past.take(one)
    recovery = Recovery(IDS, calls, past, [answer, MORE], again=False)
    made = recovery.with_transcript(CliTranscript(lines, lines[0]))
    assert made.mark is not None
    assert made.prompt.uuid == IDS.prompt([HELLO])
    assert made.then is not None
    assert made.then.uuid == IDS.prompt([MORE])


def test_a_custom_call_the_agent_has_forgotten_is_answered_when_it_makes_it_again():
    asked = logged("agent.custom_tool_use", IDS.call("t1"), name="lookup", input={})
    answer = entry("user.custom_tool_result", custom_tool_use_id=IDS.call("t1"), content=[])
    tools = [custom("lookup")]
    _, calls = plan([HELLO, asked, answer], [prompt(HELLO)], answer, again=False, tools=tools)
    again, new = calls.make("t2", "lookup", {})
    assert (again.event_id, new) == (IDS.call("t1"), False)
    message = {"id": 1, "method": "tools/call", "params": {"name": "lookup"}}
    assert calls.result("r1", McpMessage("custom", message)) is not None


def test_without_a_transcript_the_log_is_retold():
    made, _ = plan([HELLO, *said_before("Hi.", "m1"), MORE], [], MORE, again=False)
    assert not made.resume
    assert types(made) == ["agent.thread_context_compacted"]
    note, message = made.prompt.content
    assert isinstance(note, dict)
    assert "The user said: Hello.\nYou said: Hi." in note["text"]
    assert message == {"type": "text", "text": "More."}


def test_a_first_message_that_nobody_has_heard_is_simply_given_again():
    made, _ = plan([HELLO], [], HELLO)
    assert made.emits == []
    assert made.prompt.content == [{"type": "text", "text": "Hello."}]


def test_turns_that_a_restored_transcript_lacks_are_told_and_nothing_of_them_is_doubted() -> None:
    done = called_before("t2", command="make")
    came = logged("agent.tool_result", IDS.result("t2"), tool_use_id=done.id, content=BUILT)
    second = entry("user.message", content=[{"type": "text", "text": "Second."}])
    log = [HELLO, *said_before("One.", "m1"), second, done, came, *said_before("Two.", "m2"), MORE]
    lines = [prompt(HELLO), text("One.", "m1")]
    found, calls = plan(log, lines, MORE, again=False, behind=True)
    assert found.resume
    assert found.emits == []
    note, said = (block["text"] for block in found.prompt.content if isinstance(block, dict))
    parts = ["The user said: Second.", "You called bash", "built", "You said: Two."]
    places = [note.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
    assert "One." not in note and "Hello." not in note and said == "More."
    reply = calls.permission("r1", CanUseTool("Bash", "t9", {"command": "make"}))
    assert reply is not None and reply.response["behavior"] == "allow"


def test_a_transcript_that_lacks_nothing_is_gone_on_with_and_nothing_is_told() -> None:
    log = [HELLO, *said_before("One.", "m1"), MORE]
    found, _ = plan(log, [prompt(HELLO), text("One.", "m1")], MORE, again=False, behind=True)
    assert found.prompt.content == [{"type": "text", "text": "More."}]


def test_a_turn_cut_off_after_others_that_the_transcript_lacks_is_told_with_them() -> None:
    second = entry("user.message", content=[{"type": "text", "text": "Second."}])
    log = [HELLO, *said_before("One.", "m1"), second, *said_before("Two.", "m2"), MORE]
    log.append(called_before("t3", command="make"))
    found, _ = plan(log, [prompt(HELLO), text("One.", "m1")], MORE, again=True, behind=True)
    note = str(found.prompt.content)
    assert "The user said: Second." in note and "You called bash" in note
    [emit] = found.emits
    assert emit.drafts[0].type == "agent.tool_result"
