"""A conversation on the command line: with breaks, with trouble, with a person at the keyboard."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from tests.cli.conftest import Roost, Start
from tests.cli.fake import Fake, Json, withdraw

TOOL = {"name": "bash", "input": {"command": "rm -rf build"}}


def test_once_prints_the_answer_and_nothing_else(roost: Roost, start: Start) -> None:
    start(Fake())
    assert roost("chat", "--once", "Hello") == (0, "Hello there.\n", "")


def test_the_agent_and_the_environment_are_made_once(roost: Roost, start: Start) -> None:
    fake = Fake()
    fake.made["agents"].append({"id": "agent_0", "name": "another"})
    start(fake)
    roost("chat", "--once", "Hello")
    fake.frames.clear()
    roost("chat", "--once", "Hello")
    assert [agent["name"] for agent in fake.made["agents"]] == ["another", "roost-chat"]
    assert [env["name"] for env in fake.made["environments"]] == ["roost-chat"]
    assert [s["agent"] for s in fake.made["sessions"]] == ["agents_2", "agents_2"]


def test_the_agent_it_makes_has_tools_and_asks_before_it_changes_anything(
    roost: Roost, start: Start
) -> None:
    fake = Fake()
    start(fake)
    roost("chat", "--once", "Hello")
    [toolset] = fake.made["agents"][0]["tools"]
    assert toolset["type"] == "agent_toolset_20260401"
    assert toolset["default_config"]["permission_policy"] == {"type": "always_ask"}
    assert {config["name"] for config in toolset["configs"]} == {"read", "glob", "grep"}


def test_an_agent_of_its_own_that_has_no_tools_is_given_them(roost: Roost, start: Start) -> None:
    fake = Fake()
    fake.made["agents"].append({"id": "agent_0", "name": "roost-chat", "version": 3, "tools": []})
    start(fake)
    roost("chat", "--once", "Hello")
    [agent] = fake.made["agents"]
    assert agent["tools"][0]["type"] == "agent_toolset_20260401"
    assert fake.made["sessions"][0]["agent"] == "agent_0"


def test_an_agent_is_picked_by_its_name_or_its_id(roost: Roost, start: Start) -> None:
    fake = Fake()
    fake.made["agents"].append({"id": "agent_0", "name": "coder"})
    start(fake)
    for asked in ("coder", "agent_0"):
        fake.frames.clear()
        assert roost("chat", "--once", "--agent", asked, "Hello")[0] == 0
    assert [session["agent"] for session in fake.made["sessions"]] == ["agent_0", "agent_0"]
    code, _, err = roost("chat", "--once", "--agent", "nobody", "Hello")
    assert code == 1
    assert err.startswith("roost: there is no agent 'nobody'")


def test_what_somebody_else_made_in_that_instant_is_used(roost: Roost, start: Start) -> None:
    fake = Fake()
    fake.faster = True
    start(fake)
    code, _, err = roost("chat", "--once", "Hello")
    assert code == 1, "the session itself was refused, too"
    assert err.startswith("roost: That name is taken.")
    assert fake.made["sessions"][0]["agent"] == "agents_1"
    assert fake.made["sessions"][0]["environment_id"] == "environments_1"


def test_joining_a_session_at_work_shows_the_rest_of_its_turn(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    fake.append("user.message", content=[{"type": "text", "text": "Count"}])
    fake.append("session.status_running")
    fake.append("agent.message", content=[{"type": "text", "text": "one"}])

    def go_on() -> None:
        while not fake.streams:
            time.sleep(0.01)
        fake.append("agent.message", content=[{"type": "text", "text": "two"}])
        fake.rest()

    start(fake)
    threading.Thread(target=go_on).start()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, out, err = roost("chat", "--session", "sesn_1")
    assert (code, out) == (0, "one\ntwo\n")
    assert err.startswith("> Count\n")


@pytest.mark.parametrize("frames", range(9))
def test_a_lost_connection_neither_loses_nor_doubles_text(
    frames: int, roost: Roost, start: Start
) -> None:
    fake = Fake()
    fake.cut_after = [frames]
    start(fake)
    code, out, err = roost("chat", "--once", "Hello")
    if frames == 8:  # the whole turn: nothing was lost
        assert (code, out, err) == (0, "Hello there.\n", "")
    else:
        assert code == 0
        assert re.sub(r"\n", "", out) == "Hello there."
        assert err == "reconnecting…\nconnected again\n"
        assert len(fake.streams) == 2


@pytest.mark.parametrize(
    "trouble", [(503, "unavailable", "It is stopping."), (429, "rate_limited", "Too many.")]
)
def test_a_message_whose_acceptance_got_lost_is_sent_again_and_kept_once(
    roost: Roost, start: Start, trouble: tuple[int, str, str]
) -> None:
    fake = Fake()
    fake.lost_answers, fake.trouble = 2, trouble
    start(fake)
    assert roost("chat", "--once", "Hello") == (0, "Hello there.\n", "")
    assert len(fake.posted) == 1


def test_an_answer_that_was_begun_anew_is_said_so(roost: Roost, start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        fake.begin(message)
        fake.preview("sevt_x", "I was saying")
        fake.preview("sevt_y", "Again.")
        fake.append("agent.message", id="sevt_y", content=[{"type": "text", "text": "Again."}])
        fake.rest()

    start(Fake(turn))
    code, out, err = roost("chat", "--once", "Hello")
    assert (code, out) == (0, "I was saying\nAgain.\n")
    assert "begins this answer again" in err


def test_what_the_agent_prints_cannot_steer_the_terminal(roost: Roost, start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        fake.begin(message)
        text = "a\x1b]0;owned\x07b\x9b31mc\n\td"
        fake.append("agent.message", content=[{"type": "text", "text": text}])
        fake.rest()

    start(Fake(turn))
    assert roost("chat", "--once", "Hello")[1] == "a]0;ownedb31mc\n\td\n"


def test_a_tool_call_is_one_line_and_a_failed_one_says_why(roost: Roost, start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        fake.begin(message)
        use = fake.append("agent.tool_use", **TOOL)
        said = [{"type": "text", "text": "no such\nfile"}]
        fake.append("agent.tool_result", tool_use_id=use["id"], content=said, is_error=True)
        fake.append(
            "agent.tool_use", name="edit", input={"file_path": "a", "old_string": "x" * 200}
        )
        fake.rest()

    start(Fake(turn))
    code, out, err = roost("chat", "--once", "Hello")
    assert (code, out) == (0, "")
    first, second, third = err.splitlines()
    assert first == "· bash rm -rf build"
    assert second == "  failed: no such file"
    assert third.startswith('· edit {"file_path": "a"') and third.endswith("…")


@pytest.mark.parametrize(
    ("retry", "reason", "code", "words"),
    [
        ("retrying", "end_turn", 0, "the model is overloaded; trying again (busy)"),
        ("exhausted", "retries_exhausted", 1, "gave up on this turn"),
    ],
)
def test_trouble_with_the_model_is_told_in_plain_words(
    roost: Roost, start: Start, retry: str, reason: str, code: int, words: str
) -> None:
    def turn(fake: Fake, message: Json) -> None:
        fake.begin(message)
        status = {"type": retry}
        error = {"type": "model_overloaded_error", "message": "busy", "retry_status": status}
        fake.append("session.error", error=error)
        fake.rest(reason)

    start(Fake(turn))
    left, _, err = roost("chat", "--once", "Hello")
    assert left == code
    assert words in err


@pytest.mark.parametrize("kind", ["session.status_terminated", "session.deleted"])
def test_a_session_that_ends_ends_the_conversation(roost: Roost, start: Start, kind: str) -> None:
    def turn(fake: Fake, message: Json) -> None:
        fake.begin(message)
        fake.append(kind)

    start(Fake(turn))
    code, _, err = roost("chat", "--once", "Hello")
    assert code == 1
    assert "The session" in err


def test_once_says_what_the_session_waits_for(roost: Roost, start: Start) -> None:
    fake = Fake(_asks)
    start(fake)
    code, _, err = roost("chat", "--once", "Clean up")
    assert code == 1
    assert 'waits for an answer to: bash {"command": "rm -rf build"}' in err
    assert "hint: Answer with `roost sessions answer sesn_1`" in err
    assert roost("chat", "--once", "--session", "sesn_1", "And?")[0] == 1
    assert len(fake.posted) == 1, "a message that would not be read is not sent"


def test_lines_of_a_pipe_are_turns_and_a_session_can_be_gone_on_with(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(Fake(_echo))
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    code, out, err = roost("chat", "zero")
    assert (code, out) == (0, "got zero\ngot one\ngot two\n")
    assert err == "go on with: roost chat --session sesn_1\n"

    monkeypatch.setattr(sys, "stdin", io.StringIO("three\n"))
    code, out, err = roost("chat", "--session", "sesn_1")
    assert (code, out) == (0, "got zero\ngot one\ngot two\ngot three\n")
    assert err.splitlines()[:3] == ["> zero", "> one", "> two"]


def test_once_takes_its_message_from_a_pipe_and_needs_one(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(Fake(_echo))
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert roost("chat", "--once") == (0, "got from a pipe\n", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert roost("chat", "--once")[0] == 1


def test_ctrl_c_interrupts_the_turn_and_at_the_prompt_it_leaves(start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        if message["type"] == "user.message":
            fake.begin(message)
            fake.preview("sevt_p", "thinking about it")
        else:
            fake.append("user.interrupt", id=message["id"])
            fake.rest()

    fake = Fake(turn)
    with Terminal(start(fake), "chat", "Hello") as terminal:
        terminal.wait_for("thinking about it")
        terminal.press_ctrl_c_until("interrupting…")
        terminal.wait_for("> ")
        terminal.press_ctrl_c_until("go on with: roost chat --session sesn_1")
        assert terminal.exit_code() == 0
    assert [event["type"] for event in fake.posted] == ["user.message", "user.interrupt"]


def test_a_second_ctrl_c_leaves_at_once(start: Start) -> None:
    fake = Fake(lambda fake, message: None)
    with Terminal(start(fake), "chat", "Hello") as terminal:
        while not fake.streams:
            time.sleep(0.01)
        terminal.press_ctrl_c_until("interrupting…")
        while len(fake.streams) < 2:
            time.sleep(0.01)
        terminal.press_ctrl_c_until("go on with: roost chat --session sesn_1")
        assert terminal.exit_code() == 130


def test_a_person_allows_a_tool_call_at_the_prompt(start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        if message["type"] == "user.message":
            _asks(fake, message)
        else:
            _echo(fake, message)

    fake = Fake(turn)
    with Terminal(start(fake), "chat", "Clean up") as terminal:
        terminal.wait_for('allow bash {"command": "rm -rf build"}? [y/N] ')
        terminal.type("y\n")
        terminal.wait_for("got ")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
    assert fake.posted[1]["result"] == "allow"


QUESTIONS = [
    {
        "question": "Which colour?",
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}],
    },
    {"question": "Which days?", "multiSelect": True, "options": [{"label": "Mo"}, {"label": "Tu"}]},
    {"question": "Why?"},
]


def _questions(fake: Fake, message: Json) -> None:
    if message["type"] != "user.message":
        _echo(fake, message)
        return
    fake.begin(message)
    asks = fake.append(
        "agent.custom_tool_use", name="AskUserQuestion", input={"questions": QUESTIONS}
    )
    fake.rest("requires_action", event_ids=[asks["id"]])


def answer_at(terminal: Terminal) -> None:
    terminal.wait_for("1. Red: warm")
    terminal.wait_for("a number, or your own words: ")
    terminal.type("7\n")
    terminal.wait_for("there is no choice 7")
    terminal.wait_for("a number, or your own words: ")
    terminal.type("2\n")
    terminal.wait_for("numbers, or your own words: ")
    terminal.type("1, 2\n")
    terminal.wait_for("answer: ")
    terminal.type("because\n")
    terminal.wait_for("got ")


def test_a_person_answers_questions_at_the_prompt_also_after_coming_back(start: Start) -> None:
    fake = Fake(_questions)
    url = start(fake)
    with Terminal(url, "chat", "Ask me") as terminal:
        terminal.wait_for("a number, or your own words: ")
        terminal.type("\x04")  # Ctrl-D: not now
        terminal.wait_for("go on with: roost chat --session sesn_1")
        assert terminal.exit_code() == 0
    with Terminal(url, "chat", "--session", "sesn_1") as terminal:
        answer_at(terminal)
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
        assert "AskUserQuestion" not in terminal.shown  # as words, not as the input of a tool
        assert (
            terminal.shown.count("? Which colour?") == 2
        )  # asked, and again after the wrong number
    with Terminal(url, "chat", "--session", "sesn_1") as terminal:
        terminal.wait_for("? Which colour? (Red, Blue) / Which days? (Mo, Tu) / Why?")
    sent = fake.posted[1]
    assert sent["type"] == "user.custom_tool_result"
    assert json.loads(sent["content"][0]["text"]) == {
        "answers": {"Which colour?": "Blue", "Which days?": ["Mo", "Tu"], "Why?": "because"}
    }


def test_a_person_types_the_result_of_a_custom_tool(start: Start) -> None:
    def turn(fake: Fake, message: Json) -> None:
        if message["type"] != "user.message":
            _echo(fake, message)
            return
        fake.begin(message)
        asks = fake.append("agent.custom_tool_use", name="weather", input={"city": "Bonn"})
        fake.rest("requires_action", event_ids=[asks["id"]])

    fake = Fake(turn)
    with Terminal(start(fake), "chat", "What weather?") as terminal:
        terminal.wait_for('the result of weather {"city": "Bonn"}: ')
        terminal.type("rain\n")
        terminal.wait_for("got ")
    assert fake.posted[1]["content"] == [{"type": "text", "text": "rain"}]


class Terminal:
    """The real command on a real terminal."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "roost", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"ROOST_URL": url, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.shown = ""
        self._unread = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def press_ctrl_c_until(self, text: str) -> None:
        # A signal in the instant before a blocking read goes unnoticed; a person presses again.
        for _ in range(10):
            self.type("\x03")
            if self._comes(text, seconds=2):
                return
        raise AssertionError(f"no {text!r} after {self._unread!r}")

    def wait_for(self, text: str) -> None:
        assert self._comes(text, seconds=60), f"no {text!r} after {self._unread!r}"

    def _comes(self, text: str, seconds: float) -> bool:
        while text not in self._unread:
            if not select.select([self._ours], [], [], seconds)[0]:
                return False
            read = os.read(self._ours, 4096).decode(errors="replace")
            self._unread, self.shown = self._unread + read, self.shown + read
        self._unread = self._unread.partition(text)[2]
        return True

    def exit_code(self) -> int:
        return self._process.wait(60)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _echo(fake: Fake, message: Json) -> None:
    fake.begin(message)
    text = "".join(block["text"] for block in message.get("content", []))
    fake.append("agent.message", content=[{"type": "text", "text": f"got {text}"}])
    fake.rest()


def _asks(fake: Fake, message: Json) -> None:
    fake.begin(message)
    use = fake.append("agent.tool_use", evaluated_permission="ask", **TOOL)
    fake.rest("requires_action", event_ids=[use["id"]])


def test_a_message_that_somebody_else_withdrew_is_not_waited_for(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(Fake(withdraw))
    code, out, _ = roost("chat", "--once", "Hello")
    assert (code, out) == (1, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, out, err = roost("chat", "--session", "sesn_1")
    assert (code, out) == (0, "")
    assert "> Hello (withdrawn: the agent never got it)" in err
