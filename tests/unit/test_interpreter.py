"""The program that runs code inside a sandbox, alone: as its other end talks to it."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from roost.guest import interpreter

LIMIT = 120.0


class Guest:
    """The program, in a process of its own; `run` gives what came of a piece of code."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", interpreter.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        )
        self._ended = threading.Timer(LIMIT, self._process.kill)  # a hang ends the test
        self._ended.start()
        self.hello = self.receive()

    def send(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack(">I", len(data)) + data)
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = int.from_bytes(self._process.stdout.read(4), "big")
        frame: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return frame

    def run(self, code: Any, kind: str = "python", **more: Any) -> dict[str, Any]:
        self.send({"run": "e1", "kind": kind, "code": code, "seconds": 60, **more})
        return self.receive()

    def value(self, code: str) -> Any:
        answer = self.run(code)
        assert answer["status"] == "ok", answer
        return answer["value"]["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._ended.cancel()


@pytest.fixture
def guest(tmp_path: Path) -> Generator[Guest]:
    guest = Guest(tmp_path)
    try:
        yield guest
    finally:
        guest.close()


def test_variables_live_on_and_the_last_expression_is_the_value(guest: Guest) -> None:
    assert guest.value("1 + 1") == 2
    assert "value" not in guest.run("x = 40\ndef f():\n    return x + 2")
    assert guest.value("f()") == 42
    assert guest.value("_ + 1") == 43


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("True", True),
        ("None", None),
        ("'a\\'b\"c\\n'", "a'b\"c\n"),
        ("1.5", 1.5),
        ("float('nan')", "nan"),
        ("float('-inf')", "-inf"),
        ("2 ** 70", str(2**70)),
        ("[1, 'a']", "[1, 'a']"),
        ("['x' * 50, 'y' * 50]", f"['{'x' * 50}',\n '{'y' * 50}']"),
        ("'\\ud800'", "\\ud800"),
        ("b'a'", "b'a'"),
    ],
)
def test_values_are_themselves_where_json_has_them_and_else_text(
    guest: Guest, code: str, value: object
) -> None:
    assert guest.value(code) == value


def test_both_streams_are_told_also_of_what_it_starts(guest: Guest) -> None:
    answer = guest.run(
        "import subprocess, sys\nprint('out')\nprint('err', file=sys.stderr)\n"
        "done = subprocess.run(['sh', '-c', 'echo below; echo broken >&2'])"
    )
    assert sorted(answer["stdout"].split()) == ["below", "out"]
    assert sorted(answer["stderr"].split()) == ["broken", "err"]


def test_an_error_has_a_name_and_the_traceback_of_the_callers_code_alone(guest: Guest) -> None:
    answer = guest.run("def f():\n    return {}['gone']\nf()")
    assert answer["status"] == "error"
    assert answer["error"] == {"name": "KeyError", "message": "'gone'"}
    assert "return {}['gone']" in answer["stderr"]
    assert "interpreter.py" not in answer["stderr"]
    syntax = guest.run("x = (")
    assert syntax["error"]["name"] == "SyntaxError"
    assert "ast.py" not in syntax["stderr"]


def test_await_can_be_used_outside_of_functions(guest: Guest) -> None:
    assert guest.value("import asyncio\nawait asyncio.sleep(0)\n5") == 5
    assert guest.value("await asyncio.sleep(0, 'again')") == "again"


def test_nobody_is_asked_for_input(guest: Guest) -> None:
    assert guest.run("input('name?')")["error"]["name"] == "RuntimeError"
    assert guest.value("import sys; sys.stdin.read()") == ""


def test_an_endless_loop_is_interrupted_and_variables_stay(guest: Guest) -> None:
    guest.run("x = 7")
    answer = guest.run("while True:\n    pass", seconds=0.2)
    assert answer["status"] == "timeout"
    assert guest.value("x") == 7


def test_what_does_not_mind_an_interrupt_is_killed_with_what_it_started(
    guest: Guest, tmp_path: Path
) -> None:
    code = (
        "import subprocess, time\nfrom pathlib import Path\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "while True:\n    try:\n        time.sleep(1000)\n    except KeyboardInterrupt:\n        pass"
    )
    answer = guest.run(code, seconds=1)
    assert (answer["status"], answer["restarted"]) == ("timeout", True)
    _until_gone(int((tmp_path / "pid").read_text()))
    assert guest.run("child")["error"]["name"] == "NameError"


def test_stopping_ends_what_runs(guest: Guest) -> None:
    guest.send({"run": "e1", "kind": "python", "code": "while True: pass", "seconds": 100})
    guest.send({"stop": "another"})
    guest.send({"stop": "e1"})
    assert guest.receive()["status"] == "stopped"
    assert guest.value("1") == 1  # that it was to stop is not meant for the next one


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_an_interpreter_that_ends_in_an_execution_is_replaced(guest: Guest, code: str) -> None:
    guest.run("x = 1")
    answer = guest.run(f"print('before')\n{code}")
    assert (answer["status"], answer["restarted"]) == ("died", True)
    assert answer["stdout"] == "before\n"
    after = guest.run("x")
    assert after["error"]["name"] == "NameError"
    assert "lost" not in after  # that was said already


def test_an_interpreter_that_dies_between_two_executions_is_said_with_the_next(
    guest: Guest,
) -> None:
    pid = guest.value("import os; os.getpid()")
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not Path(f"/proc/{pid}").exists())  # else the next may still be given to it
    shell = guest.run("echo here", kind="shell")
    assert "lost" not in shell
    answer = guest.run("1")
    assert answer["lost"] is True
    assert "lost" not in guest.run("2")


def test_output_is_kept_up_to_a_limit_and_cutting_is_told(guest: Guest) -> None:
    answer = guest.run("print('a' * 5_000_000)")
    assert len(answer["stdout"]) == interpreter.MOST_OUTPUT
    assert answer["cut"] == ["stdout"]
    assert guest.run("print('abcdef')", most=3)["stdout"] == "abc"


def test_output_of_threads_after_an_execution_is_nobodys(guest: Guest, tmp_path: Path) -> None:
    guest.run(
        "import threading\nfrom pathlib import Path\ngo = threading.Event()\n"
        "def late():\n    go.wait()\n    print('late')\n"
        f"    Path({str(tmp_path / 'said')!r}).touch()\n"
        "threading.Thread(target=late).start()\ngo.set() if False else None"
    )
    guest.run("threading.Timer(0, go.set).start()")
    _until((tmp_path / "said").exists)
    assert guest.run("1")["stdout"] in ("", "late\n")  # it may have come during the one before
    assert guest.run("2")["stdout"] == ""


def test_a_fork_in_the_code_answers_once(guest: Guest) -> None:
    assert guest.value("import os\npid = os.fork()\n7") == 7
    assert guest.value("8") == 8


def test_images_are_told_and_the_last_wins(guest: Guest) -> None:
    code = (
        "class P:\n    def __init__(self, data):\n        self.data = data\n"
        "    def _repr_png_(self):\n        return self.data\ndisplay(P(b'one'))\nP(b'two')"
    )
    answer = guest.run(code)
    assert [image["base64_data"] for image in answer["images"]] == ["b25l", "dHdv"]
    assert answer["value"] == {"value": None}


def test_commands_have_an_exit_code_and_a_limit(guest: Guest) -> None:
    answer = guest.run("echo out; echo err >&2; exit 3", kind="shell")
    assert (answer["exit_code"], answer["stdout"], answer["stderr"]) == (3, "out\n", "err\n")
    assert guest.run(["echo", "a  b"], kind="exec")["stdout"] == "a  b\n"
    assert guest.run(["/nowhere/at/all"], kind="exec")["exit_code"] == 127
    assert guest.run("sleep 1000", kind="shell", seconds=0.2)["status"] == "timeout"
    assert guest.run("sleep 1000 & echo $!", kind="shell")["status"] == "ok"  # it is not waited for


def test_requests_that_come_together_are_run_in_order(guest: Guest) -> None:
    for number in range(5):
        code = f"seen = [*globals().get('seen', []), {number}]\nlen(seen)"
        guest.send({"run": str(number), "kind": "python", "code": code, "seconds": 60})
    answers = [guest.receive() for _ in range(5)]
    assert [(a["done"], a["value"]["value"]) for a in answers] == [
        (str(n), n + 1) for n in range(5)
    ]


def test_it_ends_with_its_other_end(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    pid = guest.value("import os; os.getpid()")
    guest.close()
    _until_gone(pid)


def _until_gone(pid: int) -> None:
    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    _until(gone)


def _until(holds: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
