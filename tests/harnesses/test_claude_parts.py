"""The claude harness without a CLI: lines, tools, permissions, calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harnesses.claude_parts import (
    agent,
    calls_of,
    custom,
    entry,
    mcp_toolset,
    toolset,
)

from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.claude.wire import CanUseTool, CliPipe, McpMessage, parse
from roost.harnesses.json_lines import LineSplitter
from roost.harnesses.permissions import Policy, Tool, Verdict
from roost.harnesses.questions import answers_to
from roost.ports.harness import Confinement


class TestLines:
    @given(st.lists(st.binary(max_size=20)), st.data())
    def test_lines_come_out_whole_however_they_are_cut(self, lines: list[bytes], data: Any):
        lines = [line.replace(b"\n", b"") for line in lines]
        stream = b"".join(line + b"\n" for line in lines)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        reader = LineSplitter(limit=20)
        assert [line for piece in pieces for line in reader.feed(piece)] == lines

    def test_a_line_that_is_too_long_is_skipped_and_the_next_one_read(self):
        reader = LineSplitter(limit=4)
        assert reader.feed(b"123") == []
        assert reader.feed(b"456") == []
        assert reader.feed(b"789\nok\n") == [b"ok"]
        assert reader.skipped == 1

    @given(st.binary(max_size=200))
    def test_no_bytes_can_do_harm(self, line: bytes):
        frame = parse(line)
        assert frame is None or isinstance(frame["type"], str)

    def test_half_a_character_costs_only_itself(self):
        frame = parse(rb'{"type":"user","text":"cut \ud83d here"}')
        assert frame == {"type": "user", "text": "cut ? here"}
        assert parse(b'{"type":"user","text":"\xff"}') is not None

    def test_what_is_nested_without_end_is_dropped(self):
        assert parse(b'{"type":' + b"[" * 100_000) is None


class TestTools:
    def test_both_sides_names_lead_to_one_tool(self):
        box = Toolbox(
            agent(toolset(), custom("lookup"), mcp_toolset("my docs"), servers=("my docs", "my"))
        )
        assert box.of("Bash") == Tool("builtin", "bash")
        assert box.of("lookup") == Tool("custom", "lookup")
        assert box.of("mcp__my_docs__find") == Tool("mcp", "find", "my docs")
        assert box.of("mcp__my__docs__find") == Tool("mcp", "docs__find", "my")
        assert box.of("AskUserQuestion").answered_by_client

    def test_a_custom_tool_may_have_the_name_of_one_of_the_clis(self):
        box = Toolbox(agent(toolset(), custom("Bash"), servers=("custom",)))
        assert box.custom_server == "custom_"
        assert box.of("mcp__custom___Bash") == Tool("custom", "Bash")
        assert box.of("Bash") == Tool("builtin", "bash")

    def test_custom_tools_are_served_as_an_mcp_server(self):
        box = Toolbox(agent(custom("lookup")))
        hello = box.serve({"id": 0, "method": "initialize", "params": {"protocolVersion": "9"}})
        assert hello is not None
        assert hello["result"]["protocolVersion"] == "9"
        listed = box.serve({"id": 1, "method": "tools/list"})
        assert listed is not None
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["lookup"]
        assert box.serve({"method": "notifications/initialized"}) is not None
        assert box.serve({"id": 2, "method": "ping"}) is not None
        unknown = box.serve({"id": 3, "method": "resources/list"})
        assert unknown is not None
        assert "error" in unknown
        assert box.serve({"id": 4, "method": "tools/call"}) is None

    @pytest.mark.parametrize(
        ("text", "answers"),
        [
            ('{"answers": {"A?": "x", "B?": ["y", "z"]}}', {"A?": "x", "B?": "y, z"}),
            ('{"A?": "x"}', {"A?": "x"}),
            ('{"other": 1}', {"A?": '{"other": 1}', "B?": '{"other": 1}'}),
            ("both of them", {"A?": "both of them", "B?": "both of them"}),
        ],
    )
    def test_a_question_can_be_answered_in_words_or_as_json(self, text: str, answers: Any):
        assert answers_to([{"question": "A?"}, {"question": "B?"}], text) == answers


class TestPermissions:
    def test_each_tool_has_the_policy_of_its_own_config_or_the_toolsets(self):
        own = {"name": "bash", "enabled": True, "permission_policy": {"type": "always_ask"}}
        off = {"name": "read", "enabled": False, "permission_policy": {"type": "always_allow"}}
        policy = Policy(agent(toolset("always_allow", own, off)))
        assert policy.judge(Tool("builtin", "bash"), {}).permission == "ask"
        assert policy.judge(Tool("builtin", "write"), {}).permission == "allow"
        assert policy.judge(Tool("builtin", "read"), {}) == Verdict("deny")
        assert policy.judge(Tool("builtin", "NotebookEdit"), {}) == Verdict("deny")
        assert policy.judge(Tool("mcp", "find", "docs"), {}) == Verdict("deny")
        assert policy.judge(Tool("custom", "nobody knows"), {}) == Verdict("deny")

    def test_auto_allows_looking_and_asks_for_the_rest(self):
        policy = Policy(agent(toolset("auto"), mcp_toolset("docs", "auto"), servers=("docs",)))
        looks = policy.judge(Tool("builtin", "read"), {})
        assert looks.permission == "allow"
        assert looks.evaluation == {"type": "auto", "evaluated_permission": {"type": "allow"}}
        acts = policy.judge(Tool("builtin", "bash"), {})
        judged = {"type": "ask", "reason_code": "indeterminate"}
        assert acts.evaluation == {"type": "auto", "evaluated_permission": judged}
        assert policy.judge(Tool("mcp", "read", "docs"), {}).permission == "ask"

    def test_to_load_a_skill_is_to_read_its_file(self):
        own = {"name": "read", "enabled": True, "permission_policy": {"type": "always_ask"}}
        body = agent(toolset("always_allow", own))
        assert Policy(body).judge(Tool("builtin", "Skill"), {}) == Verdict("deny")
        named = body | {"skills": [{"type": "custom", "skill_id": "s", "version": "v"}]}
        assert Policy(named).judge(Tool("builtin", "Skill"), {}).permission == "ask"

    @pytest.mark.parametrize(
        ("url", "allowed", "blocked"),
        [
            ("https://example.com/a", True, False),
            ("http://docs.EXAMPLE.com.:8080/a?b", True, False),
            ("https://example.com.evil.net/", False, True),
            ("https://notexample.com/", False, True),
            ("https://example.com@evil.net/", False, True),
            ("https://evil.net\\@example.com/", False, False),
            ("https://ex%61mple.com/", False, False),
            ("https://exa\tmple.com/", False, False),
            ("https://[::1", False, False),
            (None, False, False),
        ],
    )
    def test_pages_are_fetched_from_the_domains_that_the_agents_config_names(
        self, url: str | None, allowed: bool, blocked: bool
    ):
        for field, fine in (("allowed_domains", allowed), ("blocked_domains", blocked)):
            own = {"name": "web_fetch", "enabled": True, field: ["Example.com"]}
            own["permission_policy"] = {"type": "always_allow"}
            policy = Policy(agent(toolset("always_allow", own)))
            found = policy.judge(Tool("builtin", "web_fetch"), {"url": url, "prompt": "?"})
            assert found.permission == ("allow" if fine else "deny"), field
            assert policy.judge(Tool("builtin", "bash"), {}).permission == "allow"

    @pytest.mark.parametrize(
        ("field", "given", "kept"),
        [
            ("allowed_domains", {}, {"allowed_domains": ["a.com"]}),
            ("allowed_domains", {"allowed_domains": ["x.a.com", "b.com"]}, ["x.a.com"]),
            ("allowed_domains", {"allowed_domains": ["b.com"]}, ["a.com"]),
            ("allowed_domains", {"blocked_domains": ["b.com"]}, ["a.com"]),
            ("blocked_domains", {}, {"blocked_domains": ["a.com"]}),
            (
                "blocked_domains",
                {"blocked_domains": ["b.com"]},
                {"blocked_domains": ["b.com", "a.com"]},
            ),
            ("blocked_domains", {"allowed_domains": ["a.com", "b.com"]}, ["b.com"]),
            ("blocked_domains", {"allowed_domains": ["x.a.com"]}, None),
        ],
    )
    def test_searches_are_kept_to_the_domains_too(self, field: str, given: Any, kept: Any):
        own = {"name": "web_search", "enabled": True, field: ["a.com"]}
        own["permission_policy"] = {"type": "always_allow"}
        calls = calls_of(agent(toolset("always_allow", own)))
        reply = calls.permission("r", CanUseTool("WebSearch", "t", {"query": "?", **given}))
        assert reply is not None
        if kept is None:
            assert reply.response["behavior"] == "deny"
            return
        kept = {"allowed_domains": kept} if isinstance(kept, list) else kept
        assert reply.response["updatedInput"] == {"query": "?", **kept}


class TestCalls:
    def test_a_call_that_may_run_is_let_through_and_one_that_may_not_is_refused(self):
        calls = calls_of(agent(toolset()))
        reply = calls.permission("r1", CanUseTool("Bash", "t1", {"command": "ls"}))
        assert reply is not None
        assert reply.response == {"behavior": "allow", "updatedInput": {"command": "ls"}}
        refused = calls.permission("r2", CanUseTool("NotebookEdit", "t2", {}))
        assert refused is not None
        assert refused.response["behavior"] == "deny"

    def test_a_question_waits_until_its_answer_comes_or_it_is_withdrawn(self):
        calls = calls_of(agent(toolset("always_ask")))
        call, _ = calls.make("t1", "Bash", {"command": "ls"})
        assert calls.permission("r1", CanUseTool("Bash", "t1", {"command": "ls"})) is None
        assert calls.stuck
        assert calls.unanswered == [call.event_id]
        calls.withdrawn("r1")
        assert not calls.stuck
        assert calls.permission("r2", CanUseTool("Bash", "t1", {"command": "ls"})) is None
        yes = entry("user.tool_confirmation", tool_use_id=call.event_id, result="allow")
        reply = calls.answer(yes)
        assert reply is not None
        assert reply.request_id == "r2"
        assert calls.unanswered == []
        assert not calls.stuck

    def test_who_allows_a_call_may_change_its_input_within_the_bounds_of_the_session(
        self, tmp_path: Path
    ):
        within = Confinement(root=tmp_path, home=tmp_path)
        for path, behavior in ((str(tmp_path / "a"), "allow"), ("/etc/passwd", "deny")):
            calls = calls_of(agent(toolset("always_ask")), within)
            asked = CanUseTool("Read", "t1", {"file_path": str(tmp_path / "b")})
            assert calls.permission("r1", asked) is None
            (event_id,) = calls.unanswered
            given = {"result": "allow", "modified_input": {"file_path": path}}
            reply = calls.answer(entry("user.tool_confirmation", tool_use_id=event_id, **given))
            assert reply is not None
            assert reply.response["behavior"] == behavior
            if behavior == "allow":
                assert reply.response["updatedInput"] == {"file_path": path}

    def test_a_custom_tools_call_without_an_id_is_found_by_its_name(self):
        calls = calls_of(agent(custom("lookup")))
        call, _ = calls.make("t1", "lookup", {})
        content = [{"type": "text", "text": "found"}]
        calls.answer(
            entry("user.custom_tool_result", custom_tool_use_id=call.event_id, content=content)
        )
        message = {"id": 7, "method": "tools/call", "params": {"name": "lookup", "arguments": {}}}
        reply = calls.result("r1", McpMessage("custom", message))
        assert reply is not None
        assert reply.response["mcp_response"]["result"]["content"] == content
        message["params"] = {"name": "another"}
        none = calls.result("r2", McpMessage("custom", message))
        assert none is not None
        assert "error" in none.response["mcp_response"]

    def test_a_lost_call_that_is_made_again_keeps_its_event(self):
        calls = calls_of(agent(toolset("always_ask")))
        first, new = calls.make("t1", "Bash", {"command": "ls", "timeout": 1})
        assert new
        calls.returned("t1")
        calls.lose(first)
        again, new = calls.make("t2", "Bash", {"timeout": 1, "command": "ls"})
        assert (again.event_id, new) == (first.event_id, False)
        other, new = calls.make("t3", "Bash", {"timeout": 1, "command": "ls"})
        assert new, "only the one call was lost"
        assert other.event_id != first.event_id

    def test_nobody_is_asked_about_a_call_that_is_refused_because_it_was_made_before(self):
        calls = calls_of(agent(toolset("always_ask")))
        first, _ = calls.make("t1", "Bash", {"command": "ls"})
        calls.returned("t1")
        calls.doubt(first, "You did that.")
        again, new = calls.make("t2", "Bash", {"command": "ls"})
        assert new
        assert not again.waits
        assert calls.unanswered == []
        reply = calls.permission("r1", CanUseTool("Bash", "t2", {"command": "ls"}))
        assert reply is not None
        assert reply.response == {"behavior": "deny", "message": "You did that."}
        insists, _ = calls.make("t3", "Bash", {"command": "ls"})
        assert insists.waits, "an agent that was told so may ask"


class Printing:
    """A process that prints lines as fast as they are taken."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = list(lines)
        self.printed = 0

    async def receive(self) -> bytes:
        if not self._lines:
            await anyio.sleep_forever()
        self.printed += 1
        return self._lines.pop(0)


async def test_large_frames_are_not_read_ahead() -> None:
    """Hundreds of them would be gigabytes: one waits to be taken, and the agent with it."""
    frame = b'{"type": "user", "text": "%b"}\n' % (b"x" * 1_000_000)
    process = Printing(*[frame] * 20)
    wire = CliPipe(process, "s", lambda: None)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wire.pump)
        await anyio.sleep(0.3)
        assert process.printed <= 2
        for _ in range(20):
            assert (await wire.next(60))["type"] == "user"
        tasks.cancel_scope.cancel()
    wire._frames.close()
