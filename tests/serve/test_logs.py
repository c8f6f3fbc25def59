"""Log lines."""

from __future__ import annotations

import json
import logging

import pytest

from roost.serve import logs


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root logger as it was, after each test, and lines counted from the start."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(logs._Logger, "lines", logs._Logger.lines)


def test_what_an_agent_says_cannot_begin_a_line_or_steer_a_terminal(
    capsys: pytest.CaptureFixture[str],
):
    logs.configure("text", "info")
    logging.getLogger("x").warning("the agent says %s", "a\n12:00:00 info fine\x1b[2J\x9b31m")
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert all(c.isprintable() for c in written.rstrip("\n"))


def test_a_traceback_is_indented_below_its_line(capsys: pytest.CaptureFixture[str]):
    logs.configure("text", "info")
    try:
        raise ValueError("a\n12:00:00 info fine\x1b[2J")
    except ValueError:
        logging.getLogger("x").exception("it broke", extra={"session": "sesn_1"})
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("it broke  session=sesn_1")
    assert all(line.startswith("  ") and "\x1b" not in line for line in rest)


def test_every_json_line_names_the_session(capsys: pytest.CaptureFixture[str]):
    logs.configure("json", "info")
    logging.getLogger("x").info("one", extra={"session": "sesn_1", "action": "claim"})
    logging.getLogger("x").info("two")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["session"] for line in lines] == ["sesn_1", None]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_token_in_an_address_is_not_written(form, capsys: pytest.CaptureFixture[str]):
    logs.configure(form, "info")
    try:
        raise ValueError("GET /ws/v2?token=eyJ.secret-1_x&sessionId=sesn_1")
    except ValueError:
        logging.getLogger("x").exception("failed: %s", "/ws/v2?sessionId=sesn_1&token=eyJ.secret-2")
    written = capsys.readouterr().err
    assert "secret" not in written
    assert written.count("token=") >= 2
    assert "sesn_1" in written


def test_lines_of_a_kind_have_a_bound_and_others_are_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "_LINES_OF_ALL", 5)
    logs.configure("text", "info")
    for number in range(20):
        logging.getLogger("x").warning("it broke: %s", number)
    logging.getLogger("x").warning("something else")
    written = capsys.readouterr().err
    assert written.count("it broke") == 5
    assert "something else" in written


def test_what_was_left_out_is_counted_and_nothing_is_made_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "_LINES_OF_ALL", 5)
    now = 1000.0
    monkeypatch.setattr(logs.time, "time", lambda: now)
    known = logging.getLogger("made.before")
    logs.configure("text", "info")
    made: list[logging.LogRecord] = []
    monkeypatch.setattr(known, "filters", [lambda record: made.append(record) or True])
    for number in range(20):
        known.info("it broke: %s", number)
    assert len(made) == 5
    now += 60
    known.info("it broke: %s", 20)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "it broke: 20 (15 more such lines were left out)" in last
