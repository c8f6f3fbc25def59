"""The harness for the Agent Client Protocol, with an agent that does what real ones do only at times."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.errors import RoostError, StartupError
from roost.harnesses.acp import AcpAgent, AcpHarness, conversation
from roost.harnesses.acp.agents import agents_of
from roost.harnesses.acp.calls import NOT_MADE_AGAIN
from roost.harnesses.logged_past import MADE_BEFORE, UNKNOWN
from roost.ports.harness import Brief, Conversation, Emit, Output, StartMode
from roost.testing.in_memory_runner import InMemoryRunner, text_of, with_toolset

END = {"type": "end_turn"}
PROGRAM = Path(__file__).with_name("acp_fake_agent.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_PAUSES", (0.01, 0.01, 0.01))


def agent(tmp_path: Path, **environ: str) -> SandboxedHarness:
    """The agent in plain processes."""
    command = [sys.executable, "-I", "-S", str(PROGRAM)]
    listed = AcpAgent(command=command, abilities=["approvals"], environ=environ)
    return SandboxedHarness(AcpHarness("fake", listed), tmp_path)


def without_instructions(policy: str = "always_allow") -> dict[str, object]:
    return {**with_toolset(policy), "system": None}


@pytest.mark.parametrize("record", ["overwritten", "emptied"])
async def test_a_record_that_loading_overwrites_loses_nothing(tmp_path: Path, record: str):
    """As Gemini CLI does within a minute: its session is gone, and the log is not."""
    harness = agent(tmp_path, AGENT_RECORD=record, AGENT_MINUTE="12-00")
    runner = InMemoryRunner(harness, without_instructions())
    await runner.run(runner.say("My name is Ada. RUN[echo a-result]"))
    await runner.run(runner.say("What is my name?"))
    first, second = runner.texts()
    assert first == "Heard: My name is Ada. RUN[echo a-result]"
    for word in ("The user said: My name is Ada.", "returned: a-result", f"You said: {first}"):
        assert second.count(word) == 1
    assert second.endswith("What is my name?")
    assert len(runner.events("agent.thread_context_compacted")) == 1
    await runner.run(runner.say("And now?"))
    assert runner.texts()[-1].count("The user said: What is my name?") == 1
    assert len(runner.events("agent.tool_use")) == 1


async def test_an_agent_that_cannot_load_sessions_is_told_what_the_log_has(tmp_path: Path):
    runner = InMemoryRunner(agent(tmp_path, AGENT_RECORD="none"), without_instructions())
    await runner.run(runner.say("My name is Ada."))
    await runner.run(runner.say("What is my name?"))
    assert runner.texts()[-1].count("The user said: My name is Ada.") == 1
    assert len(runner.events("agent.thread_context_compacted")) == 1


async def test_a_session_that_the_agent_loads_is_not_told_again(tmp_path: Path):
    runner = InMemoryRunner(agent(tmp_path), without_instructions())
    await runner.run(runner.say("One."))
    await runner.run(runner.say("Two."))
    assert runner.texts() == ["Heard: One.", "Heard: One. | Two."]
    assert runner.events("agent.thread_context_compacted") == []
    assert (runner.spent.input_tokens, runner.spent.output_tokens) == (14, 10)


async def test_instructions_are_told_once_and_again_when_they_change(tmp_path: Path):
    runner = InMemoryRunner(agent(tmp_path), {**with_toolset(), "system": "Be brief."})
    await runner.run(runner.say("One."))
    await runner.run(runner.say("Two."))
    assert runner.texts()[-1].count("Be brief.") == 1
    changed = {**with_toolset(), "system": "Be long."}
    runner._session = replace(runner._session, spec=replace(runner._session.spec, agent=changed))
    await runner.run(runner.say("Three."))
    assert runner.texts()[-1].count("Be long.") == 1


async def test_a_call_that_a_kill_cut_off_is_unknown_and_not_repeated(tmp_path: Path):
    harness = agent(tmp_path)
    runner = InMemoryRunner(harness, without_instructions())
    message = runner.say("RUN[echo ran >> ran.txt; sleep 600]")

    async with runner.open() as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when, harness.workspace / "ran.txt", tasks)
        await runner.turn(opened, [message])
    assert await runner.run(message, again=True) == END
    (call,), (result,) = runner.events("agent.tool_use"), runner.events("agent.tool_result")
    assert result.fields["tool_use_id"] == call.id
    assert text_of(result) == UNKNOWN
    assert (harness.workspace / "ran.txt").read_text() == "ran\n"
    assert "Their outcome is unknown" in runner.texts()[-1]


@pytest.mark.parametrize("writes", ["nothing", "calls"])
@pytest.mark.parametrize("before", [(), ("My name is Ada.",)])
async def test_a_call_whose_result_only_the_log_has_is_told_and_not_repeated(
    tmp_path: Path, writes: str, before: Sequence[str]
):
    """The process is killed after its result was logged, and before it has written that down itself."""
    harness = agent(tmp_path, AGENT_RECORD="late", AGENT_WRITES=writes)
    runner = InMemoryRunner(harness, without_instructions())
    for text in before:
        await runner.run(runner.say(text))
    message = runner.say("RUN[echo ran | tee -a ran.txt] STOP")
    with anyio.CancelScope() as killed:

        async def kill(_: Conversation, output: Output) -> None:
            if runner.events("agent.tool_result"):
                killed.cancel()

        async with runner.open() as opened:
            await runner.turn(opened, [message], watch=kill)
    assert await runner.run(message, again=True) == END
    assert (harness.workspace / "ran.txt").read_text() == "ran\n"
    first, *refused = runner.events("agent.tool_result")
    assert (text_of(first), first.fields["is_error"]) == ("ran\n", False)
    assert all(text_of(each).startswith(MADE_BEFORE) for each in refused)
    (answer,) = runner.texts()[len(before) :]
    call = """call bash {"command": "echo ran | tee -a ran.txt"} returned: ran"""
    assert call in answer.partition("were refused")[0], "it is told before it does anything"
    again = await runner.run(runner.say("RUN[echo ran | tee -a ran.txt]"))
    assert (again, (harness.workspace / "ran.txt").read_text()) == (END, "ran\nran\n")


async def test_a_turn_whose_whole_answer_only_the_log_has_is_over(tmp_path: Path):
    """Its message is not told again, and the next turn knows of it."""
    runner = InMemoryRunner(agent(tmp_path, AGENT_RECORD="none"), without_instructions())
    message = runner.say("One.")
    await runner.run(message)
    async with runner.open() as opened:
        assert await runner.turn(opened, [message], again=True) == END
        assert runner.texts() == ["Heard: One."]
        await runner.turn(opened, [runner.say("Two.")])
    _, second = runner.texts()
    assert second.count("The user said: One.") == second.count("You said: Heard: One.") == 1


async def _stop_when(path: Path, tasks: anyio.abc.TaskGroup) -> None:
    while not await anyio.Path(path).exists():  # noqa: ASYNC110 - a tool's doing
        await anyio.sleep(0.02)
    tasks.cancel_scope.cancel()


async def test_an_agent_that_dies_in_a_turn_is_started_again(tmp_path: Path):
    runner = InMemoryRunner(agent(tmp_path), without_instructions())
    rest = await runner.run(runner.say("DIE"))
    assert rest == END, "the message is in its record, so it is not said to it again"
    assert runner.troubles() == ["retrying"]
    assert runner.texts() == ["Heard: DIE | Continue from where you left off."]


async def test_what_an_agent_says_about_a_prompt_that_failed_is_no_message(tmp_path: Path):
    """Its record has it, as if it had been said. What a process that died has said is logged all the same."""
    runner = InMemoryRunner(agent(tmp_path), without_instructions())
    told = runner.say("FAIL")
    assert await runner.run(told) == {"type": "retries_exhausted"}
    assert (runner.texts(), runner.troubles()) == ([], ["exhausted"])
    assert await runner.run(told, again=True) == END  # as after a raise of its budget
    assert runner.texts()[0] == "Half an answer."
    go_on = "Continue from where you left off."
    assert runner.texts()[1:] == [f"Heard: FAIL | {go_on} | {go_on}"]


@pytest.mark.parametrize(("cut", "logged"), [(0, False), (1, False), (1, True), (2, True)])
async def test_what_an_agent_says_about_a_prompt_that_failed_is_no_message_after_the_next_one(
    tmp_path: Path, cut: int, logged: bool
):
    """The server is killed while the agent is started for that, or just after."""
    runner = InMemoryRunner(agent(tmp_path), without_instructions())
    assert await runner.run(runner.say("FAIL")) == {"type": "retries_exhausted"}
    told = runner.say("Next.")
    if cut:
        await runner.run(told, cut=cut, logged=logged)
    else:
        runner._take_up(told)
    assert await runner.run(told, again=True) == END
    assert "API Error" not in "".join(runner.texts())
    assert "Next." in runner.texts()[-1]


async def test_a_call_that_is_allowed_after_its_process_is_gone_is_made_again(tmp_path: Path):
    harness = agent(tmp_path)
    runner = InMemoryRunner(harness, without_instructions("always_ask"))
    rest = await runner.run(runner.say("RUN[echo ran >> ran.txt]"))
    (call,) = runner.events("agent.tool_use")
    assert rest == {"type": "requires_action", "event_ids": [call.id]}
    assert await runner.run(runner.confirm(call.id)) == END
    assert [entry.id for entry in runner.events("agent.tool_use")] == [call.id], "asked once"
    (result,) = runner.events("agent.tool_result")
    assert (result.fields["tool_use_id"], result.fields["is_error"]) == (call.id, False)
    assert (harness.workspace / "ran.txt").read_text() == "ran\n"


async def test_a_call_that_is_allowed_and_not_made_again_has_a_result_that_says_so(tmp_path: Path):
    harness = agent(tmp_path, AGENT_HEEDS="nothing")
    runner = InMemoryRunner(harness, without_instructions("always_ask"))
    await runner.run(runner.say("RUN[echo ran >> ran.txt]"))
    (call,) = runner.events("agent.tool_use")
    assert await runner.run(runner.confirm(call.id)) == END
    (result,) = runner.events("agent.tool_result")
    assert (result.fields["tool_use_id"], text_of(result)) == (call.id, NOT_MADE_AGAIN)
    assert not (harness.workspace / "ran.txt").exists()


async def test_a_call_that_is_refused_after_its_process_is_gone_never_runs(tmp_path: Path):
    harness = agent(tmp_path)
    runner = InMemoryRunner(harness, without_instructions("always_ask"))
    await runner.run(runner.say("RUN[echo ran >> ran.txt]"))
    (call,) = runner.events("agent.tool_use")
    no = runner.confirm(call.id, "deny", deny_message="Not on a Sunday.")
    assert await runner.run(no) == END
    assert text_of(runner.events("agent.tool_result")[0]) == "Not on a Sunday."
    assert "Not on a Sunday." in runner.texts()[-1]
    assert not (harness.workspace / "ran.txt").exists()


async def test_a_call_that_is_allowed_with_another_input_is_made_with_that(tmp_path: Path):
    """The protocol cannot change an input, so the agent is told."""
    runner = InMemoryRunner(agent(tmp_path), without_instructions("always_ask"))
    async with runner.open() as opened:
        await runner.turn(opened, [runner.say("RUN[echo one]")])
        (call,) = runner.events("agent.tool_use")
        yes = runner.confirm(call.id, modified_input={"command": "echo two"})  # type: ignore[arg-type]
        assert await runner.turn(opened, [yes]) == END
    (result,) = runner.events("agent.tool_result")
    assert result.fields["is_error"]
    assert '{"command":"echo two"}' in runner.texts()[-1]


async def test_an_interrupt_stops_an_agent_that_waits_for_nothing(tmp_path: Path):
    runner = InMemoryRunner(agent(tmp_path), without_instructions())

    async def interrupt(opened: Conversation, output: Output) -> None:
        if isinstance(output, Emit):
            await opened.interrupt()

    async with runner.open() as opened:
        assert await runner.turn(opened, [runner.say("HANG")], watch=interrupt) == END
        runner.interrupted()
        assert await runner.turn(opened, [runner.say("Go on.")]) == END
    assert runner.texts() == ["Heard: HANG | Go on."]


async def test_files_that_are_older_than_the_log_are_noticed(tmp_path: Path):
    """A snapshot of the home lacks the second turn."""
    harness = agent(tmp_path)
    runner = InMemoryRunner(harness, without_instructions())
    await runner.run(runner.say("One."))
    (record,) = (harness.home / ".chats").iterdir()
    older = record.read_text()
    await runner.run(runner.say("Two."))
    record.write_text(older)
    await runner.run(runner.say("Three."))
    last = runner.texts()[-1]
    assert last.count("The user said: Two.") == 1
    assert "The user said: One." not in last
    assert runner.events("agent.thread_context_compacted") == []


async def test_a_session_without_a_sandbox_around_it_is_refused(tmp_path: Path):
    """Its model is at a port, and the machine's own are everybody's."""
    harness = agent(tmp_path)
    runner = InMemoryRunner(harness)
    spec = replace(runner._session.spec, trust_level="full")
    brief = Brief(replace(runner._session, spec=spec), runner._history, StartMode.FRESH)
    with pytest.raises(RoostError, match="runs in a sandbox only, not with the trust level 'full'"):
        async with harness.open(brief):
            pass


async def test_a_model_that_is_not_an_id_never_gets_into_a_configuration(tmp_path: Path):
    definition = {**without_instructions(), "model": {"id": 'x","permission":{"*":"allow'}}
    runner = InMemoryRunner(agent(tmp_path, CONFIG='{"model": "{model}"}'), definition)
    with pytest.raises(RoostError, match="cannot be given to this agent"):
        await runner.run(runner.say("Hello."))


async def test_both_sides_say_what_the_official_library_understands(tmp_path: Path):
    """It has a model of every message of the protocol."""
    from acp import schema

    shapes = {
        "initialize": (schema.InitializeRequest, schema.InitializeResponse),
        "session/new": (schema.NewSessionRequest, schema.NewSessionResponse),
        "session/load": (schema.LoadSessionRequest, schema.LoadSessionResponse),
        "session/prompt": (schema.PromptRequest, schema.PromptResponse),
        "session/cancel": (schema.CancelNotification, None),
        "session/update": (schema.SessionNotification, None),
        "session/request_permission": (
            schema.RequestPermissionRequest,
            schema.RequestPermissionResponse,
        ),
    }
    trace = tmp_path / "trace"
    runner = InMemoryRunner(agent(tmp_path, AGENT_TRACE=str(trace)), without_instructions())

    async def interrupt(opened: Conversation, output: Output) -> None:
        if isinstance(output, Emit):
            await opened.interrupt()

    await runner.run(runner.say("RUN[true]"))
    async with runner.open() as opened:
        await runner.turn(opened, [runner.say("HANG")], watch=interrupt)
    seen = set()
    asked: dict[tuple[str, object], str] = {}
    for line in trace.read_text().splitlines():
        who, message = json.loads(line)
        method = message.get("method")
        if method is not None:
            seen.add(method)
            asked[who, message.get("id")] = method
            shapes[method][0].model_validate(message["params"])
        else:
            other = "said" if who == "heard" else "heard"
            answer = shapes[asked[other, message["id"]]][1]
            assert answer is not None
            answer.model_validate(message["result"])
    assert seen == shapes.keys()


def test_the_agents_of_a_file_say_what_they_can_do_and_what_is_shown_to_them(tmp_path: Path):
    program = tmp_path / "bin" / "agent"
    program.parent.mkdir()
    program.touch(mode=0o755)
    file = tmp_path / "agents.toml"
    file.write_text(
        f"""
        [plain]
        command = ["agent"]

        [careful]
        command = ["/opt/bin/agent", "--acp"]
        mounts = ["{program.parent}:/opt/bin"]
        abilities = ["approvals", "images"]
        own_directories = [".agent"]
        upstream = "openai"
        version = "1.2"

        [absent]
        command = ["/opt/absent/agent"]
        """
    )
    found = agents_of(file)
    assert list(found) == ["plain", "careful", "absent"]
    plain, careful = found["plain"].profile, found["careful"].profile
    assert (plain.abilities.approvals, plain.fixed_tools, plain.upstream) == (
        False,
        True,
        "anthropic",
    )
    assert (careful.abilities.approvals, careful.fixed_tools, careful.upstream) == (
        True,
        False,
        "openai",
    )
    assert careful.abilities.images and not careful.abilities.files
    assert careful.own_directories == {".acp", ".agent"}
    assert not any(
        each.abilities.custom_tools or each.abilities.retries for each in (plain, careful)
    )
    assert found["plain"].shown == []
    assert found["careful"].check() == "1.2"
    with pytest.raises(RoostError, match="/opt/absent/agent does not exist") as missing:
        found["absent"].check()
    assert "ROOST_AGENTS" in (missing.value.hint or "")
    program.chmod(0o644)
    with pytest.raises(RoostError, match=f"{program} cannot be executed"):
        found["careful"].check()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "names no agent"),
        ("[a", "agents.toml: "),
        ("[Loud]\ncommand = ['x']", "Loud: a name has small letters"),
        ("[claude]\ncommand = ['x']", "claude: another harness has this name"),
        ("[a]", "missing required field `command`"),
        ("[a]\ncommand = []", "a: `command` is empty"),
        ("[a]\ncommand = ['x']\ncolour = 'red'", "unknown field `colour`"),
        ("[a]\ncommand = ['x']\nabilities = ['skills']", "Invalid enum value 'skills'"),
        ("[a]\ncommand = ['/tmp/x']", "`/tmp/x:/opt/agent`"),
        ("[a]\ncommand = ['x']\nmounts = ['here']", "'here' is not an absolute path"),
        ("[a]\ncommand = ['x']\nmounts = ['/a/../b:/opt/b']", "'/a/../b' is not an absolute path"),
        ("[a]\ncommand = ['x']\nmounts = ['/a', '/a/b']", "'/a/b' is part of another one"),
        ("[a]\ncommand = ['x']\nown_directories = ['a/b']", "'a/b' is not the name of a directory"),
    ],
)
def test_a_file_that_is_not_understood_is_an_error_that_says_where(
    tmp_path: Path, table: str, why: str
):
    file = tmp_path / "agents.toml"
    file.write_text(table)
    with pytest.raises(StartupError) as refused:
        agents_of(file)
    assert refused.value.message.startswith("ROOST_AGENTS: ")
    assert why in refused.value.message


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(StartupError, match="No such file"):
        agents_of(tmp_path / "agents.toml")
