"""The claude harness without a CLI: frames, names, arguments, content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harnesses.claude_parts import (
    IDS,
    agent,
    calls_of,
    custom,
    entry,
    mcp_toolset,
    said,
    streamed,
    told,
    toolset,
)

from roost.domain.session import Pending, Session, Spec, State
from roost.domain.usage import Usage
from roost.errors import RoostError
from roost.harnesses.claude import launch
from roost.harnesses.claude.frames import FrameReader
from roost.harnesses.claude.launch import CliCommand, bundled_cli
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.claude.wire import CanUseTool
from roost.harnesses.content import as_mcp, blocks_of_inputs, blocks_of_result
from roost.harnesses.logged_past import LoggedPast
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.unknown_frames import UnknownFrames
from roost.ports.harness import Emit, Show, Trouble


def results_of(*names: str) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "x"} for n in names]
    return {"type": "user", "message": {"content": results}}


class TestReading:
    def reading(self, *tools: dict[str, Any]) -> FrameReader:
        return FrameReader(IDS, calls_of(agent(*(tools or (toolset(),)))))

    def test_an_answer_is_a_span_with_previews_and_events_of_the_same_id(self):
        reading = self.reading()
        outputs = reading.take({"type": "system", "subtype": "status", "status": "requesting"})
        usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 5}
        frames = [
            streamed(type="message_start", message={"id": "msg_1", "usage": usage}),
            streamed(type="content_block_start", index=0, content_block={"type": "thinking"}),
            said({"type": "thinking", "thinking": "hm"}),
            streamed(type="content_block_start", index=1, content_block={"type": "text"}),
            streamed(
                type="content_block_delta", index=1, delta={"type": "text_delta", "text": "a"}
            ),
            said({"type": "text", "text": "ab"}),
            streamed(type="message_delta", delta={}, usage={"output_tokens": 7}),
            streamed(type="message_stop"),
        ]
        for frame in frames:
            outputs += reading.take(frame)
        assert told(outputs) == [
            "span.model_request_start",
            *("Show", "agent.thinking", "Show", "Show", "agent.message"),
            "span.model_request_end",
        ]
        shows = [output for output in outputs if isinstance(output, Show)]
        emits = [output for output in outputs if isinstance(output, Emit)]
        assert [show.event_id for show in shows] == [
            emits[1].drafts[0].id,
            *[emits[2].drafts[0].id] * 2,
        ]
        assert emits[-1].spent == Usage(10, 7, 5, 0)
        assert reading.unknown.counts == {}

    def test_an_answer_in_one_piece_is_a_span_too(self):
        reading = self.reading()
        call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
        frame = said(call, id="msg_9")
        frame["message"]["usage"] = {"input_tokens": 3, "output_tokens": 4}
        outputs = reading.take(frame)
        assert reading.asks_the_model
        outputs += reading.answered()
        assert told(outputs) == [
            "span.model_request_start",
            "agent.tool_use",
            "span.model_request_end",
        ]
        assert isinstance(outputs[-1], Emit)
        assert outputs[-1].spent == Usage(3, 4)

    def test_a_request_that_is_made_again_ends_as_a_failure_first(self):
        reading = self.reading()
        reading.take({"type": "system", "subtype": "status", "status": "requesting"})
        retry = {
            "type": "system",
            "subtype": "api_retry",
            "error_status": 529,
            "error": "overloaded",
        }
        ended, trouble = reading.take(retry)
        assert isinstance(ended, Emit)
        assert msgspec.json.decode(ended.drafts[0].body)["is_error"] is True
        assert isinstance(trouble, Trouble)
        assert (trouble.error, trouble.retry) == ("model_overloaded_error", "retrying")

    def test_calls_are_told_apart_by_who_answers_them(self):
        tools = toolset("always_ask"), mcp_toolset("docs"), custom("lookup")
        calls = calls_of(agent(*tools, servers=("docs",)))
        reading = FrameReader(IDS, calls)
        names = ["Bash", "mcp__docs__find", "lookup", "AskUserQuestion"]
        blocks = [{"type": "tool_use", "id": f"t{n}", "name": n, "input": {}} for n in names]
        emits = [o for o in reading.take(said(*blocks)) if isinstance(o, Emit)][1:]
        assert told(list(emits)) == [
            "agent.tool_use",
            "agent.mcp_tool_use",
            "agent.custom_tool_use",
            "agent.custom_tool_use",
        ]
        assert [block.kind for emit in emits for block in emit.blocks] == [
            *("confirmation", "confirmation", "custom_tool", "custom_tool")
        ]
        for name in names:
            calls.permission(name, CanUseTool(name, f"t{name}", {}))
        returned = reading.take(results_of(*names))
        assert told(returned)[-2:] == ["agent.tool_result", "agent.mcp_tool_result"]

    def test_nobody_is_waited_for_once_the_cli_has_refused_a_call_without_asking(self):
        calls = calls_of(agent(toolset("always_ask"), custom("lookup")))
        reading = FrameReader(IDS, calls)
        names = ["Bash", "lookup", "AskUserQuestion"]
        blocks = [{"type": "tool_use", "id": f"t{n}", "name": n, "input": {}} for n in names]
        asked = [o for o in reading.take(said(*blocks)) if isinstance(o, Emit) and o.blocks]
        returned = [o for o in reading.take(results_of(*names)) if isinstance(o, Emit)]
        assert told(list(returned))[-3:] == ["agent.tool_result"] * 3
        unblocked = [event_id for emit in returned for event_id in emit.unblocks]
        assert unblocked == [emit.blocks[0].event_id for emit in asked]

    def test_a_compaction_is_told(self):
        outputs = self.reading().take({"type": "system", "subtype": "compact_boundary"})
        assert told(outputs) == ["agent.thread_context_compacted"]

    def test_what_subagents_and_the_cli_itself_say_is_not_the_agents(self):
        reading = self.reading()
        text = {"type": "text", "text": "API Error: 400"}
        assert reading.take(said(text, error="unknown")) == []
        assert told(reading.take(said(text, parent_tool_use_id="t9"))) == ["roost.agent_frame"]

    @given(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(
                    ["assistant", "user", "stream_event", "system", "result", "rate_limit_event"]
                )
            },
            optional={
                "subtype": st.sampled_from(["status", "api_retry", "news"]),
                "message": st.recursive(
                    st.none() | st.text(max_size=3) | st.integers(),
                    lambda inner: (
                        st.lists(inner, max_size=2)
                        | st.dictionaries(
                            st.sampled_from(["id", "content", "type", "text", "usage", "input"]),
                            inner,
                        )
                    ),
                    max_leaves=6,
                ),
                "event": st.dictionaries(
                    st.sampled_from(["type", "index", "message", "delta"]), st.text(max_size=5)
                ),
            },
        )
    )
    def test_no_frame_can_break_the_turn(self, frame: dict[str, Any]):
        self.reading().take(frame)

    def test_frames_nobody_knows_are_passed_on_as_they_are(self):
        reading = self.reading()
        frame = {"type": "system", "subtype": "brand_new", "news": [1]}
        (emit,) = reading.take(frame)
        assert isinstance(emit, Emit)
        assert emit.aside
        assert emit.drafts[0].type == "roost.agent_frame"
        assert msgspec.json.decode(emit.drafts[0].body) == {
            "harness": "claude",
            "kind": "system brand_new",
            "frame": frame,
        }
        (cut,) = reading.take({"type": "news", "text": "x" * 20_000})
        assert isinstance(cut, Emit)
        fields = msgspec.json.decode(cut.drafts[0].body)
        assert fields["bytes"] > 20_000
        assert len(fields["excerpt"]) == 8192

    def test_a_flood_of_frames_is_counted_and_told_once(self):
        unknown = UnknownFrames("claude")
        shown = [unknown.pass_on({"type": f"kind {n % 30}"}) for n in range(300)]
        assert sum(map(len, shown)) == 60
        (emit,) = unknown.told()
        left_out = msgspec.json.decode(emit.drafts[0].body)["left_out"]
        assert sum(left_out.values()) == 240
        assert left_out["others"] == 100
        assert unknown.told() == []


class TestNames:
    def test_the_same_thing_has_the_same_name_and_no_other_session_has_it(self):
        assert StableIds("sesn_1").call("t1") == IDS.call("t1")
        assert StableIds("sesn_2").call("t1") != IDS.call("t1")
        assert IDS.call("t1") != IDS.result("t1")
        assert IDS.block("m", "text", 0) != IDS.block("m", "text", 1)
        assert StableIds("sesn_2").conversation != IDS.conversation
        assert IDS.call("t1").startswith("sevt_")
        assert len(IDS.call("t1")) == len("sevt_") + 26


class TestLaunch:
    def launch(self, agent: dict[str, Any]) -> CliCommand:
        session = Session(
            id="sesn_1",
            tenant="t",
            spec=Spec(agent=agent, environment_id="env_1"),
            state=State(thread_id="sthr_1", agent_name="a"),
            created_at=0,
            updated_at=0,
        )
        return CliCommand(
            "/bin/claude", session, Toolbox(agent), {"ANTHROPIC_API_KEY": "placeholder"}
        )

    def test_a_clients_words_never_stand_where_a_flag_could(self):
        body = agent(toolset(), mcp_toolset("--x"), servers=("--x",)) | {
            "model": {"id": "--resume"}
        }
        argv = self.launch(body | {"system": "--y"}).argv(resume=False)
        assert argv[0] == "/bin/claude"
        assert all(argument.startswith("--") for argument in argv[1:])
        assert "--model=--resume" in argv
        assert not any(argument.startswith(("--x", "--y", "--resume")) for argument in argv)

    def test_the_effort_of_the_definition_is_passed_on_if_the_cli_knows_it(self):
        def asked(effort: str) -> list[str]:
            body = agent() | {"model": {"id": "m", "effort": {"type": effort}}}
            return [a for a in self.launch(body).argv(resume=False) if a.startswith("--effort")]

        for known in ("low", "medium", "high", "xhigh", "max"):
            assert asked(known) == [f"--effort={known}"]
        assert asked("some other word") == []

    def test_it_is_resumed_under_the_name_it_was_begun_with(self):
        begun = self.launch(agent()).argv(resume=False)[-1]
        resumed = self.launch(agent()).argv(resume=True)[-1]
        assert begun.removeprefix("--session-id=") == resumed.removeprefix("--resume=")

    def test_every_tool_has_to_ask_and_only_enabled_ones_are_there(self):
        body = agent(toolset(enabled=False), custom("lookup"))
        argv = self.launch(body).argv(resume=False)
        assert "--tools=" in argv
        settings = next(a for a in argv if a.startswith("--settings="))
        asked = json.loads(settings.removeprefix("--settings="))["permissions"]["ask"]
        assert {"Bash", "Read", "WebSearch", "mcp__custom"} <= set(asked)

    def test_skills_bring_their_tool_and_the_place_where_they_are(self):
        body = agent(toolset(enabled=False))
        assert not any(
            "plugin-dir" in argument for argument in self.launch(body).argv(resume=False)
        )
        body["skills"] = [{"type": "custom", "skill_id": "s", "version": "v"}]
        argv = self.launch(body).argv(resume=False)
        assert "--plugin-dir=/run/roost/agent" in argv
        assert "--tools=Skill" in argv

    def test_the_environment_has_a_placeholder_and_no_more_than_it_needs(self):
        environ = self.launch(agent(custom("Bash"))).environ({"EXTRA": "1"})
        assert environ["ANTHROPIC_API_KEY"] == "placeholder"
        assert environ["EXTRA"] == "1"
        assert "CLAUDE_AGENT_SDK_MCP_NO_PREFIX" not in environ
        assert "CLAUDE_AGENT_SDK_MCP_NO_PREFIX" in self.launch(agent(custom("x"))).environ({})

    def test_a_cli_that_is_missing_or_another_one_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(launch, "find_spec", lambda name: None)
        with pytest.raises(RoostError, match="not installed"):
            bundled_cli()
        bundled = tmp_path / "_bundled"
        bundled.mkdir()
        (bundled / "claude").touch()
        (bundled / "claude.version").write_text("9.9.9 (Claude Code)")

        class Spec:
            submodule_search_locations = (str(tmp_path),)

        monkeypatch.setattr(launch, "find_spec", lambda name: Spec)
        with pytest.raises(RoostError, match=r"9\.9\.9"):
            bundled_cli()


class TestContent:
    def test_what_people_send_becomes_one_prompt(self):
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
        }
        file = {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "title": None}
        first = entry("user.message", content=[{"type": "text", "text": "Look:"}, image, file])
        empty = entry("user.message", content=[{"type": "text", "text": " "}])
        blocks = blocks_of_inputs([first, empty])
        assert [block["type"] for block in blocks] == ["text", "image", "text"]
        assert "file_1" in blocks[2]["text"]
        assert blocks_of_inputs([empty])[0]["type"] == "text"

    def test_what_tools_return_is_shown_as_the_api_has_it(self):
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
        }
        reference = {"type": "tool_reference", "tool_name": "x"}
        shown = blocks_of_result([{"type": "text", "text": "a"}, image, reference, "stray"])
        assert [block["type"] for block in shown] == ["text", "image", "text"]
        assert blocks_of_result("") == []
        assert blocks_of_result(None) == []

    def test_what_clients_return_is_passed_on_as_mcp_has_it(self):
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
        }
        found = {
            "type": "search_result",
            "title": "T",
            "source": "https://x.test",
            "content": [{"type": "text", "text": "body"}],
        }
        plain = {"type": "text", "media_type": "text/plain", "data": "what it says"}
        note = {"type": "document", "source": plain, "title": "N", "context": "an old one"}
        passed = as_mcp([image, found, note])
        assert passed[0] == {"type": "image", "data": "AA", "mimeType": "image/png"}
        assert passed[1]["text"] == "T (https://x.test)\nbody"
        assert passed[2]["text"] == "N\nan old one\nwhat it says"


async def test_the_log_is_retold_newest_first_when_it_is_too_long():
    past = LoggedPast()
    for n in range(100):
        past.take(entry("user.message", content=[{"type": "text", "text": f"message {n}."}]))
    past.take(entry("agent.tool_use", name="bash", input={"command": "ls"}))
    told = past.in_words(past.told, 400)
    assert told.startswith("(what came before is left out)")
    assert "message 99." in told
    assert "message 1." not in told
    assert told.endswith('You called bash {"command": "ls"}')
    assert len(told) < 500


def test_pending_calls_are_named_by_their_events():
    reading = FrameReader(IDS, calls_of(agent(toolset("always_ask"))))
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    emit = reading.take(said(call))[-1]
    assert isinstance(emit, Emit)
    assert emit.blocks == [Pending(IDS.call("t1"), "confirmation")]
