"""The tools that run inside a sandbox: driven over their pipes, as the harness does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from roost.guest import tools

PNG = bytes.fromhex("89504e470d0a1a0a")


class Guest:
    """The program, and whoever calls it."""

    def __init__(self, directory: Path, *more: str) -> None:
        command = [sys.executable, "-I", "-S", tools.__file__, str(directory), *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.calls = 0
        assert self.receive() == {"hello": 1}

    def send(self, **frame: Any) -> None:
        body = json.dumps(frame).encode()
        self.write(len(body).to_bytes(4, "big") + body)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        size = int.from_bytes(self.process.stdout.read(4), "big")
        frame: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return frame

    def call(self, tool: str, **given: Any) -> tuple[Any, bool]:
        """What a tool says, and whether that is an error."""
        self.calls += 1
        self.send(call=str(self.calls), tool=tool, input=given)
        frame = self.receive()
        assert frame["done"] == str(self.calls)
        (block,) = frame["content"]
        return block.get("text", block), frame["is_error"]

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


@pytest.fixture
def guest(tmp_path: Path) -> Generator[Guest, None, None]:
    guest = Guest(tmp_path)
    yield guest
    guest.process.kill()
    with suppress(BrokenPipeError), guest.process:
        pass


def gone(pid: int) -> bool:
    """Whether a process has ended, within a minute."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_shell_keeps_its_directory_its_variables_and_its_jobs(
    guest: Guest, tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    assert guest.call("bash", command="cd below; X=5; sleep 300 & echo on >&2") == ("on", False)
    assert guest.call("bash", command="pwd; echo $X; jobs | wc -l") == (
        f"{tmp_path}/below\n5\n1",
        False,
    )
    assert guest.call("bash", command="ls nowhere 2>/dev/null") == ("exit 2", True)
    assert guest.call("bash", command="echo said; false") == ("said", True)
    assert guest.call("bash", restart=True) == ("bash session restarted", False)
    assert guest.call("bash", command="pwd; echo ${X-none}") == (f"{tmp_path}\nnone", False)


def test_a_command_can_neither_hang_nor_forge_the_end_of_a_call(guest: Guest) -> None:
    assert guest.call("bash", command="cat; read x; echo end") == ("end", False)  # no input
    assert "unexpected EOF" in guest.call("bash", command="echo 'open")[0]
    assert guest.call("bash", command="cat <<X\nopen")[0].endswith("open")
    said, failed = guest.call("bash", command="for d in /proc/self/fd/*; do echo 0 >$d; done; true")
    assert not failed, said
    assert guest.call("bash", command="echo on")[0].endswith("on")
    assert guest.call("bash", command="") == ("bash: command is required", True)
    assert guest.call("bash", command="a\0b") == (
        "bash: a command cannot have a NUL byte in it",
        True,
    )


def test_output_is_bounded_and_fit_for_a_database(guest: Guest) -> None:
    said, _ = guest.call("bash", command="yes | head -c 3000000; printf 'a\\0b\\033[31mred\\n\\n'")
    first, _, rest = said.partition("\n")
    assert (first, rest[-6:]) == ("[output truncated]", "a\ufffdbred")
    assert len(said) < tools.OUTPUT + 100
    assert guest.call("bash", command="printf '\\xff'") == ("\ufffd", False)
    assert guest.call("bash", command="true") == ("(no output)", False)


def test_what_a_command_leaves_running_does_not_hold_its_call(guest: Guest) -> None:
    began = time.monotonic()
    assert guest.call("bash", command="(sleep 1; yes | head -c 1000000) & echo on") == ("on", False)
    assert time.monotonic() - began < 60
    # It is read also while no command runs: else it would wait for a reader.
    assert guest.call("bash", command="wait; echo over")[0].endswith("over")


@pytest.mark.parametrize("how", ["timeout", "cancel", "end"])
def test_a_command_is_killed_with_all_that_it_has_started(guest: Guest, how: str) -> None:
    pids = [int(guest.call("bash", command="sleep 300 & echo $!")[0])]
    pids.append(int(guest.call("bash", command="echo $$")[0]))
    late = 100 if how == "timeout" else 60_000
    guest.send(
        call="long", tool="bash", input={"command": "echo now; sleep 300", "timeout_ms": late}
    )
    if how == "end":
        assert guest.end() == 0
    else:
        if how == "cancel":
            time.sleep(0.3)
            guest.send(cancel="long")
        answer = guest.receive()
        assert answer["is_error"]
        said = answer["content"][0]["text"]
        assert ("timed out after 0.1s" if how == "timeout" else "interrupted") in said
        assert guest.call("bash", command="echo $X")[0].startswith("[this is a new shell")
    assert all(map(gone, pids))


def test_a_shell_that_ends_is_replaced_and_the_next_call_is_told(guest: Guest) -> None:
    assert guest.call("bash", command="echo bye; exit 3") == (
        "bye\nbash: the shell has ended (3)",
        True,
    )
    said, failed = guest.call("bash", command="echo hello")
    assert (said.splitlines()[1:], failed) == (["hello"], False)


def test_an_id_runs_once_and_is_answered_again(guest: Guest, tmp_path: Path) -> None:
    for _ in range(3):
        guest.send(call="one", tool="bash", input={"command": "echo x >>log; wc -l <log"})
        assert guest.receive()["content"][0]["text"] == "1"
    guest.send(call="slow", tool="bash", input={"command": "sleep 0.5; echo y >>log"})
    guest.send(call="slow", tool="bash", input={"command": "sleep 0.5; echo y >>log"})
    assert guest.receive()["done"] == "slow"
    assert (tmp_path / "log").read_text() == "x\ny\n"
    assert guest.call("bash", command="true") == ("(no output)", False)


def test_files_are_read_beside_a_command_that_takes_long(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    guest.send(call="slow", tool="bash", input={"command": "sleep 300"})
    guest.send(call="queued", tool="bash", input={"command": "echo never >ran"})
    assert guest.call("read", file_path="a") == ("text", False)
    guest.send(cancel="queued")
    guest.send(cancel="slow")
    assert {guest.receive()["done"] for _ in range(2)} == {"slow", "queued"}
    assert not (tmp_path / "ran").exists()


def test_edits_of_one_file_beside_each_other_all_count(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "n").write_text("".join(f"<{n}>" for n in range(20)))
    for n in range(20):
        given = {"file_path": "n", "old_string": f"<{n}>", "new_string": "."}
        guest.send(call=f"edit-{n}", tool="edit", input=given)
    assert not any(guest.receive()["is_error"] for _ in range(20))
    assert (tmp_path / "n").read_text() == "." * 20


def test_files_are_written_read_and_edited(guest: Guest, tmp_path: Path) -> None:
    text = "one\r\ntwo\nthree\n"
    assert guest.call("write", file_path="a/b.txt", content=text)[0] == "wrote 15 bytes to a/b.txt"
    assert (tmp_path / "a" / "b.txt").read_bytes() == text.encode()
    assert guest.call("read", file_path="a/b.txt") == (text, False)
    ranges = {(2, 2): "two", (2, 3): "two\nthree", (2, 0): "two\nthree\n", (3, 2): "(no output)"}
    for asked, said in ranges.items():
        assert guest.call("read", file_path="a/b.txt", view_range=list(asked)) == (said, False)
    edit = {"file_path": "a/b.txt", "old_string": "t", "new_string": "T"}
    assert guest.call("edit", **edit)[0].endswith("appears 2 times in a/b.txt (must be unique)")
    assert guest.call("edit", **edit, replace_all=True)[0] == "edited a/b.txt (2 replacement(s))"
    assert guest.call("edit", **edit) == ("edit: old_string not found in a/b.txt", True)


def test_pictures_and_documents_are_blocks(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "a.PNG").write_bytes(PNG)
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    block, _ = guest.call("read", file_path="a.PNG")
    assert block == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    assert guest.call("read", file_path="a.pdf")[0]["type"] == "document"


@pytest.mark.parametrize(
    ("tool", "given", "said"),
    [
        ("read", {"file_path": "none"}, "read: none: no such file or directory"),
        ("read", {"file_path": "."}, "read: .: not a regular file"),
        ("read", {"file_path": "pipe"}, "read: pipe: not a regular file"),
        ("read", {"file_path": "/dev/zero"}, "read: /dev/zero: not a regular file"),
        ("read", {"file_path": "raw"}, "read: raw: not valid UTF-8 text"),
        ("read", {"file_path": "raw", "view_range": [1, 2]}, "read: raw: not valid UTF-8 text"),
        ("read", {"file_path": "big"}, "exceeds 262144-byte limit. Use the view_range"),
        ("read", {"file_path": "big", "view_range": [1, 1]}, "these lines are more than"),
        ("read", {"file_path": "big.png"}, "limit for image/PDF files"),
        ("read", {"file_path": "a" * 5000}, "file name too long"),
        ("read", {"file_path": ["x"]}, "read: file_path is required"),
        ("read", {"file_path": "raw", "view_range": "all"}, "must be [start_line, end_line]"),
        ("write", {"file_path": "pipe", "content": ""}, "write: pipe: not a regular file"),
        ("write", {"file_path": "raw/x", "content": ""}, "write: raw/x: "),
        ("write", {"file_path": "x", "content": 5}, "content must be a string"),
        ("edit", {"file_path": "raw", "old_string": "a", "new_string": ""}, "cannot edit binary"),
        ("edit", {"file_path": "big", "old_string": "a", "new_string": ""}, "cannot modify"),
        ("edit", {"file_path": "big", "old_string": "", "new_string": "x"}, "not empty"),
        ("glob", {"pattern": "/etc/*"}, "absolute pattern not permitted"),
        ("glob", {"pattern": "../*"}, "'..' is not permitted"),
        ("glob", {"pattern": "*", "path": "none"}, "no such file or directory"),
        ("grep", {"pattern": "("}, "grep: "),
        ("grep", {"pattern": ""}, "grep: pattern is required"),
        ("bash", {"command": "true", "timeout_ms": "soon"}, "must be a positive number"),
        ("bash", None, "bash: command is required"),
        ("web_search", {}, "web_search: there is no such tool"),
        (None, {}, "None: there is no such tool"),
    ],
)
def test_what_cannot_be_done_is_an_answer(tmp_path: Path, tool: Any, given: Any, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    (tmp_path / "big").write_bytes(b"a" * 300_000)
    (tmp_path / "big.png").write_bytes(b"a" * 5_000_000)
    call = tools.Call("one")
    served = tools.SandboxTools(str(tmp_path))
    with pytest.raises(tools.ToolError) as error:
        served.run(call, str(tool), given or {})
    assert said in str(error.value)


def test_searches_that_nothing_else_keeps_in_a_directory_stay_there(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "hidden", root / "notes", outside):
        folder.mkdir(parents=True)
        (folder / "pin").write_text("pin\n")
    (root / "link").symlink_to(outside)
    (root / ".ignore").write_text("!hidden\n")
    guest = Guest(root, "sesn_1", str(root), str(root / "hidden"))
    with guest.process:
        assert guest.call("grep", pattern="pin") == (f"{root}/notes/pin:1:pin", False)
        assert guest.call("glob", pattern="*/pin") == (f"{root}/notes/pin", False)
        assert guest.call("glob", pattern="link/*") == ("no matches", False)


def test_searches_find_the_newest_and_stop_at_their_bounds(guest: Guest, tmp_path: Path) -> None:
    for n in range(300):
        path = tmp_path / f"{n}.txt"
        path.write_text(f"line {n}\nneedle {n}\n")
        os.utime(path, (n, n))
    found, _ = guest.call("glob", pattern="*.txt")
    assert found.splitlines() == [f"{tmp_path}/{n}.txt" for n in range(299, 99, -1)]
    assert guest.call("glob", pattern="*.md") == ("no matches", False)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x").write_text("needle 7\n")
    assert guest.call("grep", pattern="needle 7$") == (f"{tmp_path}/7.txt:2:needle 7", False)
    assert guest.call("grep", pattern="nothing") == ("no matches", False)
    (tmp_path / "many").write_text("needle\n" * 100_000)
    assert guest.call("grep", pattern="needle", path="many")[0].endswith(
        "truncated at 102400 bytes]"
    )


def test_a_pattern_that_takes_for_ever_is_cancelled(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a" * 60 + "!\n")
    guest.send(call="grep", tool="grep", input={"pattern": r"(?:(a+)+)+\1$"})
    assert guest.call("bash", command="echo on") == ("on", False)
    time.sleep(0.5)
    guest.send(cancel="grep")
    answer = guest.receive()
    assert (answer["done"], answer["is_error"]) == ("grep", True)


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", b"\0\0\0\5hello", b"\0\0\0\2[]", b"\0\0\0\2", b"\0"],
    ids=["too large", "no JSON", "no object", "cut off", "cut off in its length"],
)
def test_what_is_no_frame_ends_it(guest: Guest, data: bytes) -> None:
    guest.write(data)
    assert guest.end() == 0


def test_frames_that_ask_for_nothing_are_left_alone(guest: Guest) -> None:
    guest.send(cancel="never")
    guest.send(cancel=5)
    guest.send(call={"x": 1})
    guest.send(other=True)
    assert guest.call("bash", command="echo on") == ("on", False)


def test_killed_it_takes_its_pipes_along(guest: Guest) -> None:
    guest.send(call="long", tool="bash", input={"command": "sleep 1"})
    time.sleep(0.2)
    guest.process.send_signal(signal.SIGKILL)
    assert guest.process.stdout is not None
    assert guest.process.stdout.read() == b""
