"""The parts of the codex harness that need no program: tools, the log as it is told, and messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import pytest
from tests.harnesses.claude_parts import IDS, agent, custom, entry, mcp_toolset, told, toolset

from roost.domain.events import Entry
from roost.harnesses.codex.history import CodexHistory
from roost.harnesses.codex.process import CodexProcess
from roost.harnesses.codex.tools import CodexTools, answer_of, result_of
from roost.harnesses.codex.wire import AppServerPipe
from roost.harnesses.permissions import Policy, Tool
from roost.ports.harness import Emit, Output, Trouble

ASKING = agent(
    toolset("always_ask"), custom("lookup"), mcp_toolset("my docs"), servers=("my docs",)
)
TURN = {"threadId": "thread", "turnId": "turn"}


def tools_of(given: dict[str, Any]) -> CodexTools:
    return CodexTools(given, Policy(given))


def called(name: str, call_id: str = "call_1", **given: Any) -> dict[str, Any]:
    arguments = json.dumps(given)
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": arguments}


class TestTools:
    @pytest.mark.parametrize(
        ("item", "tool", "given"),
        [
            (
                called("exec_command", cmd="ls", workdir="/tmp"),
                Tool("builtin", "bash"),
                {"command": "ls", "workdir": "/tmp"},
            ),
            (
                called("write_stdin", session_id=1, chars=""),
                Tool("builtin", "bash"),
                {"session_id": 1, "chars": ""},
            ),
            (called("view_image", path="a.png"), Tool("builtin", "read"), {"file_path": "a.png"}),
            (called("lookup", what="x"), Tool("custom", "lookup"), {"what": "x"}),
            (
                {**called("find", what="x"), "namespace": "mcp__my_docs_0"},
                Tool("mcp", "find", "my docs"),
                {"what": "x"},
            ),
            (
                {
                    "type": "custom_tool_call",
                    "name": "apply_patch",
                    "call_id": "call_1",
                    "input": "***",
                },
                Tool("builtin", "edit"),
                {"patch": "***"},
            ),
        ],
    )
    def test_a_call_can_be_told_again_from_what_the_log_has_of_it(
        self, item: dict[str, Any], tool: Tool, given: dict[str, Any]
    ):
        tools = tools_of(ASKING)
        call = tools.call(item, "sevt_1")
        assert (call.tool, call.input) == (tool, given)
        name = f"{tool.server}\0{tool.name}" if tool.kind == "mcp" else tool.name
        again = tools.item_of(name, given, "call_1")
        if "arguments" in item:
            again["arguments"], item = json.loads(again["arguments"]), {**item}
            item["arguments"] = json.loads(item["arguments"])
        assert again == item

    @pytest.mark.parametrize(
        ("policy", "name", "given", "permission"),
        [
            ("always_ask", "exec_command", {"cmd": "ls"}, "ask"),
            ("always_ask", "exec_command", {"cmd": "sh", "tty": True}, "deny"),
            ("always_allow", "exec_command", {"cmd": "sh", "tty": True}, "allow"),
            ("always_ask", "lookup", {}, "ask"),
            ("always_ask", "shell", {"command": ["ls"]}, "ask"),
            ("always_ask", "spawn_agent", {"message": "Look."}, "ask"),
            ("always_ask", "list_mcp_resources", {}, "allow"),
            ("always_allow", "get_context_remaining", {}, "allow"),
        ],
    )
    def test_calls_have_the_permission_of_their_tool(
        self, policy: str, name: str, given: dict[str, Any], permission: str
    ):
        tools = tools_of(agent(toolset(policy), custom("lookup")))
        assert tools.call(called(name, **given), "sevt_1").verdict.permission == permission

    def test_a_tool_of_another_namespace_is_none_of_those_with_the_same_name(self):
        tools = tools_of(agent(toolset("always_ask"), custom("lookup")))
        call = tools.call({**called("update_plan"), "namespace": "other"}, "sevt_1")
        assert (call.tool.name, call.verdict.permission) == ("other.update_plan", "ask")
        plain = tools.call({**called("update_plan"), "namespace": "functions"}, "sevt_1")
        assert plain.verdict.permission == "allow"

    def test_a_patch_that_adds_a_file_needs_the_permission_to_write(self):
        ask = {"name": "write", "enabled": True, "permission_policy": {"type": "always_ask"}}
        tools = tools_of(agent(toolset("always_allow", ask)))
        patch = {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c"}
        changes = tools.call({**patch, "input": "*** Update File: a"}, "sevt_1")
        adds = tools.call({**patch, "input": "*** Add File: a"}, "sevt_1")
        assert (changes.verdict.permission, adds.verdict.permission) == ("allow", "ask")

    @pytest.mark.parametrize(
        ("output", "text", "failed"),
        [
            ("Chunk ID: 1\nProcess exited with code 0\nOutput:\na\nb\n", "a\nb", False),
            ("Wall time: 1\nProcess exited with code 2\nOutput:\nno\n", "Exit code 2\nno", True),
            ("aborted by user", "aborted by user", True),
        ],
    )
    def test_what_a_command_came_to_is_told_apart(self, output: str, text: str, failed: bool):
        call = tools_of(ASKING).call(called("exec_command", cmd="x"), "sevt_1")
        assert result_of(call, output) == ([{"type": "text", "text": text}], failed)

    def test_a_command_that_still_runs_says_how_it_is_reached(self):
        call = tools_of(ASKING).call(called("exec_command", cmd="x"), "sevt_1")
        (block,), failed = result_of(call, "Process running with session ID 7\nOutput:\nbegun\n")
        assert "session ID 7" in block["text"]
        assert not failed

    def test_a_picture_is_shown_as_one_and_an_mcp_tools_time_is_not(self):
        call = tools_of(ASKING).call(called("view_image", path="x"), "sevt_1")
        url = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        (block,), _ = result_of(call, [{"type": "input_text", "text": "Wall time: 1 s"}, url])
        assert block["source"] == {"type": "base64", "media_type": "image/png", "data": "AAAA"}

    def test_answers_go_to_the_questions_ids(self):
        asked = [{"id": "q1", "question": "A?"}, {"id": "q2", "question": "B?"}]
        call = tools_of(ASKING).call(called("request_user_input", questions=asked), "sevt_1")
        assert call.input["questions"][0]["question"] == "A?"
        given = answer_of(call, '{"A?": "x"}')
        assert given == {"answers": {"q1": {"answers": ["x"]}}}


async def history_of(entries: Sequence[Entry], given: Collection[str] = ()) -> CodexHistory:
    async def log() -> AsyncIterator[Entry]:
        for each in entries:
            yield each

    return await CodexHistory.read(log(), tools_of(ASKING), given)


def said(text: str, type: str = "user.message") -> Entry:
    return entry(type, content=[{"type": "text", "text": text}])


class TestHistory:
    async def test_the_log_is_told_with_every_call_and_its_result(self):
        bash = entry("agent.tool_use", name="bash", input={"command": "ls"})
        found = [{"type": "text", "text": "found"}]
        mcp = entry("agent.mcp_tool_use", name="find", input={}, mcp_server_name="my docs")
        history = await history_of(
            [
                said("Hello"),
                said("Look.", "agent.message"),
                bash,
                mcp,
                entry("agent.mcp_tool_result", mcp_tool_use_id=mcp.id, content=found),
            ]
        )
        items = history.items()
        assert [item["type"] for item in items] == [
            *("message", "message", "function_call", "function_call"),
            *("function_call_output", "function_call_output"),
        ]
        assert items[3]["namespace"] == "mcp__my_docs_0"
        outputs = {item["call_id"]: item["output"] for item in items[4:]}
        assert outputs[mcp.id] == "found"
        assert "outcome is unknown" in outputs[bash.id]
        assert list(history.open) == [bash.id]

    async def test_an_interrupt_or_another_message_closes_what_waits(self):
        call = entry("agent.tool_use", name="bash", input={}, evaluated_permission="ask")
        assert (await history_of([said("a"), call])).waiting == [call.id]
        for later in (entry("user.interrupt"), message := said("b")):
            assert (await history_of([said("a"), call, later])).waiting == []
        given = await history_of([said("a"), call, message], {message.id})
        assert given.waiting == [call.id], "an answer to it may come with the message"

    async def test_of_a_past_that_is_too_long_the_newest_part_is_told(self):
        long = "x" * 1_500_000
        history = await history_of(
            [said(long), said("ok", "agent.message"), said(long), said("end")]
        )
        items = history.items()
        assert "left out" in json.dumps(items[0])
        assert items[-1]["content"][0]["text"] == "end"
        assert sum(len(json.dumps(item)) for item in items) < 2_000_000


class FakePipe(AppServerPipe):
    """Keeps what the program is told; there is no program."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    async def send(self, *frames: dict[str, Any]) -> None:
        self.told += frames


async def at_work(given: dict[str, Any] = ASKING) -> tuple[CodexProcess, FakePipe]:
    """A process that was asked something, and has told the name of its turn."""
    program = FakePipe()
    process = CodexProcess(program, tools_of(given), IDS, "", since=0)
    process.thread = "thread"
    await process.say([{"type": "text", "text": "Hello"}], {})
    await process.take({"id": 1, "result": {"turn": {"id": "turn"}}})
    return process, program


async def heard(process: CodexProcess, method: str, **params: Any) -> list[Output]:
    return await process.take({"method": method, "params": {**TURN, **params}})


COMMAND = called("exec_command", cmd="ls")
APPROVAL = {
    "id": 0,
    "method": "item/commandExecution/requestApproval",
    "params": {**TURN, "itemId": "call_1"},
}


class TestProcess:
    async def test_what_it_asks_is_held_until_the_answer_is_logged_as_a_whole(self):
        process, program = await at_work(agent(toolset()))
        text = {"type": "message", "role": "assistant", "id": "m", "content": [{"text": "Look."}]}
        await heard(process, "rawResponseItem/completed", item=text)
        await heard(process, "rawResponseItem/completed", item=COMMAND)
        await process.take(APPROVAL)
        assert len(program.told) == 1
        assert process.ready() is None
        (emit,) = await heard(process, "rawResponse/completed", usage={"inputTokens": 5})
        assert isinstance(emit, Emit)
        assert [draft.type for draft in emit.drafts] == [
            *("agent.message", "agent.tool_use", "span.model_request_end"),
        ]
        held = process.ready()
        assert held is not None
        await process.take(held)
        assert program.told[-1] == {"id": 0, "result": {"decision": "accept"}}

    async def test_an_answer_that_breaks_off_leaves_what_codex_has_taken_down(self):
        process, _ = await at_work(agent(toolset()))
        await heard(process, "rawResponseItem/completed", item=COMMAND)
        broken = {"message": "x", "codexErrorInfo": {"responseStreamDisconnected": {}}}
        outputs = await heard(process, "error", error=broken, willRetry=True)
        assert told(outputs) == ["agent.tool_use", "Trouble", "span.model_request_start"]
        assert isinstance(outputs[1], Trouble)
        assert outputs[1].retry == "retrying"

    async def test_a_call_that_codex_refuses_by_itself_waits_for_nobody(self):
        process, _ = await at_work()
        await heard(process, "rawResponseItem/completed", item=COMMAND)
        (emit,) = await heard(process, "rawResponse/completed")
        assert isinstance(emit, Emit)
        (pending,) = emit.blocks
        output = {"type": "function_call_output", "call_id": "call_1", "output": "no such input"}
        result, again = await heard(process, "rawResponseItem/completed", item=output)
        assert isinstance(result, Emit)
        assert result.unblocks == [pending.event_id]
        assert told([again]) == ["span.model_request_start"]

    async def test_what_nobody_here_can_answer_is_declined_or_refused(self):
        process, program = await at_work()
        await heard(process, "rawResponse/completed")
        form = {"serverName": "my docs", "mode": "form", "_meta": {}}
        await process.take({"id": 5, "method": "mcpServer/elicitation/request", "params": form})
        assert program.told[-1]["result"]["action"] == "decline"
        await process.take({**APPROVAL, "id": 6})
        assert program.told[-1]["result"] == {"decision": "decline"}
        await process.take({"id": 7, "method": "currentTime/read", "params": {}})
        assert "error" in program.told[-1]

    @pytest.mark.parametrize(
        "item",
        [
            called("update_plan"),
            called("view_image", path="a.png"),
            {**called("find"), "namespace": "mcp__my_docs_0"},
        ],
    )
    async def test_no_command_runs_on_the_strength_of_what_may_not_run_one(
        self, item: dict[str, Any]
    ):
        given = agent(toolset(), mcp_toolset("my docs", "always_allow"), servers=("my docs",))
        process, program = await at_work(given)
        await heard(process, "rawResponseItem/completed", item=item)
        await heard(process, "rawResponse/completed")
        for number, what in enumerate(("commandExecution", "fileChange")):
            await process.take({**APPROVAL, "id": number, "method": f"item/{what}/requestApproval"})
            assert program.told[-1] == {"id": number, "result": {"decision": "decline"}}

    async def test_a_tool_of_a_server_is_not_taken_for_another_one_with_the_same_input(self):
        toolset_of = mcp_toolset("my docs", "always_allow")
        ask = {"name": "drop", "enabled": True, "permission_policy": {"type": "always_ask"}}
        given = agent(toolset(), {**toolset_of, "configs": [ask]}, servers=("my docs",))
        process, program = await at_work(given)
        for name in ("find", "drop"):
            item = {**called(name, name, what="x"), "namespace": "mcp__my_docs_0"}
            await heard(process, "rawResponseItem/completed", item=item)
        await heard(process, "rawResponse/completed")
        for name in ("find", "drop"):
            await heard(process, "item/started", item={"type": "mcpToolCall", "id": name})
        meta = {"codex_approval_kind": "mcp_tool_call", "tool_params": {"what": "x"}}
        asked = {"serverName": "my_docs_0", "_meta": meta}
        for number, name in enumerate(("drop", "find")):
            said = f'Allow the my_docs_0 MCP server to run tool "{name}"?'
            method = "mcpServer/elicitation/request"
            frame = {"id": number, "method": method, "params": {**asked, "message": said}}
            await process.take(frame)
        assert [each for each in program.told if each.get("id") == 0] == []  # somebody is asked
        assert program.told[-1]["id"] == 1
        assert program.told[-1]["result"]["action"] == "accept"

    async def test_a_summary_that_codex_makes_is_told_and_unknown_words_are_counted(self):
        process, _ = await at_work()
        outputs = await heard(process, "item/completed", item={"type": "contextCompaction"})
        assert told(outputs) == ["agent.thread_context_compacted"]
        assert await heard(process, "something/new") == []
        assert dict(process.unknown) == {"something/new": 1}

    async def test_a_server_that_cannot_be_reached_is_named_as_the_agent_names_it(self):
        process, _ = await at_work()
        method = "mcpServer/startupStatus/updated"
        assert await heard(process, method, name="my_docs_0", status="ready") == []
        (emit,) = await heard(process, method, name="my_docs_0", status="failed")
        assert isinstance(emit, Emit)
        assert json.loads(emit.drafts[0].body)["error"]["mcp_server_name"] == "my docs"

    async def test_a_turn_that_cannot_begin_ends_with_the_reason(self):
        process = CodexProcess(FakePipe(), tools_of(ASKING), IDS, "", since=0)
        await process.say([], {})
        outputs = await process.take({"id": 1, "error": {"message": "no such model"}})
        assert told(outputs) == ["span.model_request_end"]
        assert process.done
        trouble, _ = process.end_of_turn()
        assert isinstance(trouble, Trouble)
        assert "no such model" in trouble.message


def test_lines_that_are_no_messages_are_dropped():
    pipe = FakePipe()
    assert pipe.frame_of(b'{"x": 1}') == "not a message"
    assert pipe.frame_of(b"[]") == "not a message"
    assert pipe.frame_of(b'{"method": "x"}') == {"method": "x"}
