"""The built-in tools of an agent that has no program of its own, run inside its sandbox.

    python3 -I -S tools.py DIRECTORY [WHOSE]  serves calls on its standard input and output
    python3 -I -S tools.py --grep PATTERN PATH

Each frame is four bytes of length, the most significant first, and a JSON object. It says `hello` once, then
takes `{"call": id, "tool": name, "input": {...}}` and `{"cancel": id}`, and answers each call with one
`{"done": id, "content": [...], "is_error": bool}`, in the order in which they end. An id runs once: asked for
again, it is answered as before. At the end of its input it kills what it has started, and ends.

Commands run in one shell, which keeps its directory, its variables and its jobs from call to call. A command
that takes too long or is cancelled is killed with its whole process group, and so is the shell; the next
call is told that it has a new one. Calls run beside each other, except commands, and calls about one file.

It stands alone: whatever Python a sandbox has, and nothing else but `fetch`, which is beside it.
"""

from __future__ import annotations

import binascii
import json
import os
import queue
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath

TYPE_CHECKING = False  # `typing` has it too, and takes as long to import as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any, BinaryIO, TextIO

LARGEST_IN = 64 * 1024**2
LARGEST_OUT = 32 * 1024**2
OUTPUT = 102_400  # bytes of a command's output that are kept: the last ones
TEXT = 262_144  # bytes of a file that is read as a whole, or edited
IMAGE = 5 * 1024**2 // 4 * 3
DOCUMENT = 20 * 1024**2
USUAL_SECONDS = 120.0
MOST_SECONDS = 600.0
MOST_MATCHES = 200
MOST_LOOKED_AT = 50_000
LONGEST_LINE = 2_000
MOST_KEPT = 64  # answers that are kept for a call that is asked for again
LARGEST_KEPT = 65_536

MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}
REASONS = {
    "FileNotFoundError": "no such file or directory",
    "NotADirectoryError": "not a directory",
    "IsADirectoryError": "is a directory",
    "PermissionError": "permission denied",
    "FileExistsError": "file already exists",
}
NEW_SHELL = "[this is a new shell: the directory, variables and jobs of the one before are gone]"
HERE = Path(__file__).resolve()
INTERRUPTED = "Tool execution was interrupted before completion. Please retry."


class ToolError(Exception):
    """A tool that failed; its text is what the model is told."""


class Frames:
    """Frames over two streams of bytes. Sending is for any thread, receiving for one."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self.source = source
        self.sink = sink
        self.sending = threading.Lock()

    def receive(self) -> dict[str, Any] | None:
        """The next frame; None at the end, and after what is no frame: nothing after it can be found."""
        head = self.source.read(4)
        size = int.from_bytes(head, "big")
        if len(head) < 4 or size > LARGEST_IN:
            return None
        body = self.source.read(size)
        if len(body) < size:
            return None
        try:
            frame = json.loads(body)
        except ValueError:
            return None
        return frame if isinstance(frame, dict) else None

    def send(self, body: bytes) -> None:
        """Send the bytes of a frame."""
        with self.sending:
            self.sink.write(len(body).to_bytes(4, "big") + body)
            self.sink.flush()


def encoded(answer: dict[str, Any]) -> bytes:
    """The bytes of an answer; of one that is too large, what says so."""
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    if len(body) <= LARGEST_OUT:
        return body
    return json.dumps(done(answer["done"], "the result is too large", is_error=True)).encode()


def done(
    call: str, content: str | list[dict[str, Any]], *, is_error: bool = False
) -> dict[str, Any]:
    """The answer to a call. Text without a NUL, which databases refuse, and never without a letter."""
    if isinstance(content, str):
        text = content.replace("\0", "\ufffd")
        content = [{"type": "text", "text": text if text.strip() else "(no output)"}]
    return {"done": call, "content": content, "is_error": is_error}


class Call:
    """One call under way. `stop` is set when it is cancelled; what can be killed is in `kill`."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.lock = threading.Lock()
        self.stopped = False
        self.kill: Callable[[], None] | None = None

    def stop(self) -> None:
        """Cancel it, whether it has begun or not."""
        with self.lock:
            self.stopped = True
            if self.kill is not None:
                self.kill()

    def run_killable(self, kill: Callable[[], None]) -> None:
        """From now on it can be killed like this. :raises ToolError: it was cancelled before"""
        with self.lock:
            if self.stopped:
                raise ToolError(INTERRUPTED)
            self.kill = kill

    def check(self) -> None:
        """:raises ToolError: it was cancelled"""
        if self.stopped:
            raise ToolError(INTERRUPTED)


class Shell:
    """A bash that takes one command after another. Its output is read also while no command runs, so that
    what a command has left running never waits for a reader.
    """

    def __init__(self, directory: str) -> None:

        self.answers: queue.Queue[int | None] = queue.Queue()
        self.output = bytearray()
        self.was_cut = False
        self.guard = threading.Lock()
        self.nonce = b""
        self.control, control = os.pipe()
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC_")}
        try:
            self.process = subprocess.Popen(
                ["/bin/bash", "--noprofile", "--norc"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**environ, "PS1": "", "PS2": "", "TERM": "dumb"},
                pass_fds=(control,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self.control)
            raise ToolError(f"bash: the shell cannot be started: {reason(error)}") from None
        finally:
            os.close(control)
        self.number = control
        threading.Thread(target=self.pump, daemon=True).start()

    def run(self, command: str, seconds: float, call: Call) -> tuple[str, int]:
        """Its output, and how it ended. :raises ToolError: it did not end by itself, or the shell ended too"""
        self.nonce = os.urandom(16).hex().encode()
        call.run_killable(self.end)
        # The command comes behind the line that reads it, so an open quote in it is its own mistake, and
        # how it ended comes by a pipe that it does not have.
        line = (
            b"IFS= read -r -d '' __roost; eval \"$__roost\" </dev/null 2>&1 %d>&-; "
            b'printf "%%s %%d\\n" %s "$?" >&%d\n' % (self.number, self.nonce, self.number)
        )

        try:
            stdin = self.process.stdin
            assert stdin is not None
            stdin.write(line + command.encode("utf-8", "replace") + b"\0")
            stdin.flush()
            status = self.answers.get(timeout=seconds)
        except queue.Empty:
            self.end()
            raise ToolError(
                self.said(f"bash: bash command timed out after {seconds:.1f}s")
            ) from None
        except OSError:
            status = None
        finally:
            call.kill = None
        if status is None:
            self.end()
            ended = f"bash: the shell has ended ({self.process.wait()})"
            raise ToolError(self.said(INTERRUPTED if call.stopped else ended))
        return self.said(""), status

    def said(self, last: str) -> str:
        """What was put out since it was last asked, and a last line."""
        with self.guard:
            raw, cut = bytes(self.output[-OUTPUT:]), self.was_cut or len(self.output) > OUTPUT
            self.output.clear()
            self.was_cut = False
        text = plain(raw.decode("utf-8", "replace")).rstrip("\n")
        return "\n".join(part for part in ("[output truncated]" if cut else "", text, last) if part)

    def end(self) -> None:
        """Kill it, and all that is in its process group."""

        with suppress(OSError):  # it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)

    def pump(self) -> None:
        """Read what it puts out, and how its commands end, until it is dead."""

        out = self.process.stdout
        assert out is not None
        os.set_blocking(out.fileno(), False)
        open_ends = {self.control, out.fileno()}
        line = b""
        while self.control in open_ends:
            ready, _, _ = select.select(list(open_ends), [], [])
            if out.fileno() in ready and not self.take(out.fileno()):
                open_ends.discard(out.fileno())
            if self.control not in ready:
                continue
            data = os.read(self.control, 4096)
            if not data:
                open_ends.discard(self.control)
            *lines, line = (line + data).split(b"\n")
            for ended in lines:
                nonce, _, status = ended.partition(b" ")
                if nonce == self.nonce and status.isdigit():
                    # What it has put out before it ended is in the pipe by now.
                    self.take(out.fileno())
                    self.answers.put(int(status))
        self.take(out.fileno())
        os.close(self.control)
        self.answers.put(None)
        self.process.wait()

    def take(self, descriptor: int) -> bool:
        """Take all that is there; False at its end. Only the last part is kept."""
        while True:
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            with self.guard:
                self.output += data
                if len(self.output) > 2 * OUTPUT:
                    del self.output[:-OUTPUT]
                    self.was_cut = True


class SandboxTools:
    """The tools of one sandbox, in the directory that their paths begin at. `bounds`: where nothing else keeps them
    in, the directory that they have to stay in, and those in it that they must not look into.
    """

    def __init__(self, directory: str, bounds: Sequence[str] = ()) -> None:
        self.directory = directory
        self.bounds = [os.path.realpath(each) for each in bounds]
        self.shell: Shell | None = None
        self.had_shell = False
        self.bash_lock = threading.Lock()
        self.locks: dict[Path, threading.Lock] = {}
        self.guard = threading.Lock()

    def run(self, call: Call, tool: str, given: dict[str, Any]) -> str | list[dict[str, Any]]:
        """Carry out a call. :raises ToolError: it failed"""
        run = {
            "bash": self.bash,
            "read": self.read,
            "write": self.write,
            "edit": self.edit,
            "glob": self.glob,
            "grep": self.grep,
            "web_fetch": self.web_fetch,
        }.get(tool)
        if run is None:
            raise ToolError(f"{tool}: there is no such tool")
        return run(call, given)

    def close(self) -> None:
        """Kill what was started."""
        if self.shell is not None:
            self.shell.end()

    def bash(self, call: Call, given: dict[str, Any]) -> str:
        """Run a command in the shell, or start the shell anew."""
        command, restart = given.get("command"), given.get("restart")
        limit = given.get("timeout_ms") or 0
        if not isinstance(limit, (int, float)) or isinstance(limit, bool) or limit < 0:
            raise ToolError("bash: timeout_ms must be a positive number")
        with self.bash_lock:
            call.check()
            if restart:
                self.close()
                self.shell, self.had_shell = Shell(self.directory), False
                return "bash session restarted"
            if not isinstance(command, str) or not command.strip():
                raise ToolError("bash: command is required")
            if "\0" in command:
                raise ToolError("bash: a command cannot have a NUL byte in it")
            return self.run_command(call, command, min(limit / 1000 or USUAL_SECONDS, MOST_SECONDS))

    def run_command(self, call: Call, command: str, seconds: float) -> str:
        """Run a command in the shell that there is, or in a new one, and say so if it is one."""
        is_new = self.shell is None or self.shell.process.poll() is not None
        if self.shell is None or is_new:
            self.shell = Shell(self.directory)
        note = NEW_SHELL if is_new and self.had_shell else ""
        self.had_shell = True
        try:
            output, status = self.shell.run(command, seconds, call)
        except ToolError as error:
            self.shell = None  # it was killed, or has ended by itself
            raise ToolError(lines(note, str(error))) from None
        if status:
            raise ToolError(lines(note, output) or f"exit {status}")
        return lines(note, output)

    def read(self, call: Call, given: dict[str, Any]) -> str | list[dict[str, Any]]:
        """A file's text, some of its lines, or a picture or document as a block."""
        name, path = self.path("read", given)
        asked = given.get("view_range")
        if asked and not (isinstance(asked, list) and len(asked) == 2 and all(map(whole, asked))):
            raise ToolError("read: view_range must be [start_line, end_line]")
        with self.alone(path), failing("read", name):
            size = regular("read", name, path)
            media = MEDIA.get(path.suffix.lower())
            if media is not None:
                if asked:
                    raise ToolError("read: view_range is not supported for image/PDF files")
                return [block_of(name, path, size, media)]
            if size > TEXT and not asked:
                raise ToolError(
                    f"read: {name} is {size} bytes, exceeds {TEXT}-byte limit. Use the view_range "
                    "parameter to read specific line ranges, e.g. view_range: [1, 500]."
                )
            if asked:
                return line_range(call, name, path, asked[0], asked[1])
            return text_of(path)

    def write(self, call: Call, given: dict[str, Any]) -> str:
        """Write a whole file, with the directories above it."""
        name, path = self.path("write", given)
        content = given.get("content")
        if not isinstance(content, str):
            raise ToolError("write: content must be a string")
        with self.alone(path), failing("write", name):
            call.check()
            path.parent.mkdir(parents=True, exist_ok=True)
            put("write", name, path, content)
        return f"wrote {len(content)} bytes to {name}"

    def edit(self, call: Call, given: dict[str, Any]) -> str:
        """Replace text in a file that occurs once, or all that occurs."""
        name, path = self.path("edit", given)
        old, new = given.get("old_string"), given.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            raise ToolError("edit: old_string and new_string must be strings, the first not empty")
        with self.alone(path), failing("edit", name):
            size = regular("edit", name, path)
            if size > TEXT:
                raise ToolError(
                    f"edit: {name} is {size} bytes, exceeds {TEXT}-byte limit. The edit tool loads the "
                    "whole file and cannot modify a file this large."
                )
            text = text_of(path)
            found = text.count(old)
            if not found:
                raise ToolError(f"edit: old_string not found in {name}")
            if found > 1 and not given.get("replace_all"):
                raise ToolError(
                    f"edit: old_string appears {found} times in {name} (must be unique)"
                )
            call.check()
            put("edit", name, path, text.replace(old, new))
        return f"edited {name} ({found} replacement(s))"

    def glob(self, call: Call, given: dict[str, Any]) -> str:
        """The files that match a pattern, newest first."""

        pattern = given.get("pattern")
        if not isinstance(pattern, str) or not pattern or "\0" in pattern:
            raise ToolError("glob: pattern is required")
        if PurePosixPath(pattern).is_absolute():
            raise ToolError(
                "glob: absolute pattern not permitted; pass a relative pattern (and optionally path)"
            )
        if ".." in PurePosixPath(pattern).parts:
            raise ToolError("glob: '..' is not permitted in the pattern")
        found = []
        try:
            for match in islice(self.root("glob", given).glob(pattern), MOST_LOOKED_AT):
                call.check()
                if is_shown(match, self.bounds):
                    found.append((changed(match), str(match)))
        except (OSError, ValueError, NotImplementedError, RecursionError) as error:
            raise ToolError(f"glob: {error}") from None
        found.sort(key=lambda pair: pair[0], reverse=True)
        return "\n".join(path for _, path in found[:MOST_MATCHES]) or "no matches"

    def grep(self, call: Call, given: dict[str, Any]) -> str:
        """The lines that match a pattern: by ripgrep if it is there, else by this program once more."""
        pattern = given.get("pattern")
        if not isinstance(pattern, str) or not pattern or "\0" in pattern:
            raise ToolError("grep: pattern is required")
        root = str(self.root("grep", given))
        # A file of names to ignore may also name directories to look into: not where there are bounds.
        ripgrep = None if self.bounds else shutil.which("rg")
        own = [sys.executable, "-I", "-S", str(HERE), "--grep", pattern, root, *self.bounds]
        named = ["-n", "--no-heading", "-e", pattern, "--", root]
        text, status, errors = self.printed(
            call, "grep", [ripgrep, *named] if ripgrep else own, OUTPUT
        )
        if status is None:
            return f"{text}\n[output truncated at {OUTPUT} bytes]"
        if status > 1 and not text:
            raise ToolError(f"grep: {errors}")
        return text.rstrip("\n") or "no matches"

    def web_fetch(self, call: Call, given: dict[str, Any]) -> str | list[dict[str, Any]]:
        """What is at an address: by `fetch`, which is shown beside this program."""
        url = given.get("url")
        if not isinstance(url, str) or not url or "\0" in url:
            raise ToolError("web_fetch: url is required")
        command = [sys.executable, "-I", "-S", str(HERE.with_name("fetch.py")), url]
        text, _, errors = self.printed(call, "web_fetch", command, LARGEST_OUT)
        try:
            answer = json.loads(text)
        except ValueError:
            raise ToolError(f"web_fetch: {errors[-500:] or 'it has failed'}") from None
        if answer["is_error"]:
            raise ToolError(f"web_fetch: {answer['content']}")
        content: str | list[dict[str, Any]] = answer["content"]
        return content

    def printed(
        self, call: Call, tool: str, command: Sequence[str], most: int
    ) -> tuple[str, int | None, str]:
        """What a program prints, how it ended, and what it complained of; None: it printed more than that, and
        was killed. It is a process of its own because it may take for ever, and nothing stops that but killing it.

        :raises ToolError: it takes too long, or was cancelled
        """
        complaints = os.memfd_create("complaints")  # a pipe would have to be read meanwhile
        try:
            with failing(tool, command[0]):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    start_new_session=True,
                )
            with process:
                try:
                    text, status = self.ended(call, tool, process, most)
                finally:
                    killed(process)
            errors = os.pread(complaints, 4096, 0).decode("utf-8", "replace").strip()
            return text.decode("utf-8", "replace"), status, errors
        finally:
            os.close(complaints)

    def ended(
        self, call: Call, tool: str, process: subprocess.Popen[bytes], most: int
    ) -> tuple[bytes, int | None]:
        """What a program has printed by its end. :raises ToolError: there was none in time, or it was cancelled"""
        assert process.stdout is not None
        overdue = threading.Timer(USUAL_SECONDS, killed, [process])
        overdue.daemon = True
        call.run_killable(lambda: killed(process))
        overdue.start()
        try:
            text = process.stdout.read(most + 1)
            if len(text) > most:
                return text[:most], None
            status = process.wait()
        finally:
            was_overdue = not overdue.is_alive()
            overdue.cancel()
            call.kill = None
        call.check()
        if was_overdue:
            raise ToolError(f"{tool}: timed out after {USUAL_SECONDS}s")
        return text, status

    def path(self, tool: str, given: dict[str, Any]) -> tuple[str, Path]:
        """The path as it was given, and the one that it leads to. :raises ToolError: there is none"""
        name = given.get("file_path")
        if not isinstance(name, str) or not name or "\0" in name:
            raise ToolError(f"{tool}: file_path is required")
        return name, self.resolved(tool, name)

    def root(self, tool: str, given: dict[str, Any]) -> Path:
        """Where a search begins. :raises ToolError: it is not there"""
        name = given.get("path") or "."
        if not isinstance(name, str) or "\0" in name:
            raise ToolError(f"{tool}: path must be a path")
        path = self.resolved(tool, name)
        if not path.exists():
            raise ToolError(f"{tool}: {name}: no such file or directory")
        return path

    def resolved(self, tool: str, name: str) -> Path:
        """The path that a name leads to, through all links. :raises ToolError: it leads nowhere"""
        with failing(tool, name):
            return Path(os.path.realpath(Path(self.directory) / name))

    def alone(self, path: Path) -> threading.Lock:
        """For as long as it is held, no other call touches the file."""
        with self.guard:
            return self.locks.setdefault(path, threading.Lock())


@contextmanager
def failing(tool: str, name: str) -> Generator[None, None, None]:
    """What goes wrong with files inside is told in the same words everywhere."""
    try:
        yield
    except UnicodeDecodeError:
        more = "binary files are only supported for image/PDF extensions"
        more = more if tool == "read" else "cannot edit binary files"
        raise ToolError(f"{tool}: {name}: not valid UTF-8 text ({more})") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"{tool}: {name}: {reason(error)}") from None


def reason(error: BaseException) -> str:
    """Why something cannot be done, without the paths of the machine."""
    for kind in type(error).__mro__:
        if kind.__name__ in REASONS:
            return REASONS[kind.__name__]
    return (getattr(error, "strerror", None) or "i/o error").lower()


def regular(tool: str, name: str, path: Path) -> int:
    """The size of a file, which is not opened before: a pipe would never be read to its end.

    :raises ToolError: it is something else
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"{tool}: {name}: not a regular file")
    return found.st_size


def text_of(path: Path) -> str:
    """A file's text, as it is. More than its bound it may have by now is left out."""
    with path.open("rb") as file:
        return file.read(TEXT + 1).decode("utf-8")


def line_range(call: Call, name: str, path: Path, first: int, last: int) -> str:
    """Lines of a file of any size, counted from 1; up to its end if the last is not above 0."""
    chosen, size = [], 0
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(bounded_lines(file), 1):
            if 0 < last < number:
                break
            if number % 1000 == 0:
                call.check()
            if number < first:
                continue
            size += len(line)
            if size > TEXT:
                raise ToolError(f"read: {name}: these lines are more than {TEXT} bytes")
            chosen.append(line)
    text = "".join(chosen)
    return text[:-1] if text.endswith("\n") and last > 0 else text


def bounded_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file; of one that is too long only as much as shows that."""
    while line := file.readline(TEXT + 2):
        yield line


def block_of(name: str, path: Path, size: int, media: str) -> dict[str, Any]:
    """A picture or a document, as a block of a message. :raises ToolError: it is too large"""

    is_document = media == "application/pdf"
    most = DOCUMENT if is_document else IMAGE
    if size > most:
        raise ToolError(
            f"read: {name} is {size} bytes, exceeds {most}-byte limit for image/PDF files."
        )
    with path.open("rb") as file:
        data = binascii.b2a_base64(file.read(most), newline=False).decode()
    source = {"type": "base64", "media_type": media, "data": data}
    return {"type": "document" if is_document else "image", "source": source}


def put(tool: str, name: str, path: Path, text: str) -> None:
    """Make it the content of a file. :raises ToolError: something else is there"""
    with suppress(FileNotFoundError):
        regular(tool, name, path)
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)


def whole(number: object) -> bool:
    """Whether it is a whole number."""
    return isinstance(number, int) and not isinstance(number, bool)


def changed(path: Path) -> float:
    """When a file was changed; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def killed(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group, and wait for it."""

    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def plain(text: str) -> str:
    """Without the sequences that colour a terminal."""
    if "\x1b" not in text:
        return text

    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)


def lines(*parts: str) -> str:
    """Those that are not empty, one below the other."""
    return "\n".join(part for part in parts if part)


class Server:
    """Takes calls until the input ends."""

    def __init__(self, frames: Frames, tools: SandboxTools) -> None:
        self.frames = frames
        self.tools = tools
        self.running: dict[str, Call] = {}
        self.answers: dict[str, bytes] = {}
        self.guard = threading.Lock()

    def serve(self) -> None:
        """Take calls, each in a thread of its own."""
        self.frames.send(b'{"hello": 1}')
        while (frame := self.frames.receive()) is not None:
            if isinstance(frame.get("cancel"), str):
                self.cancel(frame["cancel"])
            elif isinstance(frame.get("call"), str):
                self.begin(frame["call"], frame.get("tool"), frame.get("input"))
        self.tools.close()

    def begin(self, id: str, tool: object, given: object) -> None:
        """Run a call, unless it has run, or is running: then it is answered when that ends."""
        with self.guard:
            kept, is_new = self.answers.get(id), id not in self.running
            call = self.running.setdefault(id, Call(id)) if kept is None else None
        if kept is not None:
            self.frames.send(kept)
        elif is_new:
            threading.Thread(target=self.run, args=(call, tool, given), daemon=True).start()

    def run(self, call: Call, tool: object, given: object) -> None:
        """Carry a call out, and answer it whatever happens."""
        try:
            content = self.tools.run(call, str(tool), given if isinstance(given, dict) else {})
            answer = done(call.id, content)
        except ToolError as error:
            answer = done(call.id, str(error), is_error=True)
        except Exception as error:  # noqa: BLE001 - whoever has called waits for an answer
            answer = done(call.id, f"{tool}: {type(error).__name__}: {error}", is_error=True)
        body = kept = encoded(answer)
        if len(body) > LARGEST_KEPT:
            said = "this call has run; its result is not kept"
            kept = encoded(done(call.id, said, is_error=True))
        # Kept before it is sent: whoever has it may ask again, and finds it.
        with self.guard:
            del self.running[call.id]
            self.answers[call.id] = kept
            if len(self.answers) > MOST_KEPT:
                del self.answers[next(iter(self.answers))]
        self.frames.send(body)

    def cancel(self, id: str) -> None:
        """Stop a call; nothing happens if it has ended."""
        with self.guard:
            call = self.running.get(id)
        if call is not None:
            call.stop()


def is_shown(path: Path, bounds: Sequence[str]) -> bool:
    """Whether a search may tell of a path: by where it leads, through all links."""
    if not bounds:
        return True
    real, (root, *hidden) = Path(os.path.realpath(path)), bounds
    return real.is_relative_to(root) and not any(real.is_relative_to(each) for each in hidden)


def search(pattern: str, root: Path, bounds: Sequence[str]) -> int:
    """Print the lines that match, as ripgrep does where there is none. Its exit code is ripgrep's, too."""

    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        sys.stderr.write(f"invalid regex: {error}\n")
        return 2
    found = False
    for path in files_below(root, bounds):
        for line in matches_in(compiled, path):
            sys.stdout.write(line)
            found = True
    sys.stdout.flush()
    return 0 if found else 1


def files_below(root: Path, bounds: Sequence[str]) -> Iterator[Path]:
    """The files to look into, but for those that nobody means."""
    if not root.is_dir():
        yield root
        return
    left = MOST_LOOKED_AT
    for directory, below, names in os.walk(root):
        below[:] = sorted(
            name
            for name in below
            if name not in (".git", "node_modules") and is_shown(Path(directory, name), bounds)
        )
        for path in (Path(directory, name) for name in sorted(names)):
            if left and path.is_file() and not path.is_symlink():
                left -= 1
                yield path


def matches_in(pattern: re.Pattern[str], path: Path) -> Iterator[str]:
    """The lines of a file that match. A file that cannot be read, or is no text, has none."""
    with suppress(OSError), path.open("rb") as file:
        if b"\0" in file.read(512):
            return
        file.seek(0)
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if len(raw) <= LONGEST_LINE and pattern.search(line):
                yield f"{path}:{number}:{line}\n"


def main(arguments: Sequence[str]) -> int:
    """Search once, or serve until the input ends."""
    if arguments[:1] == ["--grep"]:
        try:
            return search(arguments[1], Path(arguments[2]), arguments[3:])
        except BrokenPipeError:  # whoever asked has seen enough
            os._exit(0)
    # What tools print must not come between the frames.
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    with os.fdopen(source, "rb") as reader, os.fdopen(sink, "wb") as writer:
        Server(Frames(reader, writer), SandboxTools(arguments[0], arguments[2:])).serve()
    os._exit(0)  # threads that still work hold nothing that is worth waiting for


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
