"""Runs code in a sandbox: Python in an interpreter that stays, shell commands each in a process of its own.

    python3 -I interpreter.py

Standard library only, and nothing of Roost. Frames go over stdin and stdout: four bytes of length, then JSON.

    in:   {"run": ID, "kind": "python" | "shell" | "exec", "code": TEXT or LIST, "seconds": N, "most": BYTES}
          {"stop": ID}
    out:  {"hello": PID}
          {"done": ID, "status": "ok" | "error" | "timeout" | "stopped" | "died", "stdout": …, "stderr": …, …}

There are two processes. This one takes requests, keeps time, collects output and never runs what it is sent. The
interpreter is forked from it. It leads a session of its own, so it can be interrupted, and killed with all that it
has started, and then another one is forked. Its stdout and stderr are pipes to this process: what a thread or a
subprocess writes arrives as well, and what is written after an execution has ended is dropped.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib
import json
import linecache
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import types
from contextlib import suppress
from functools import partial
from typing import Any

Json = dict[str, Any]

KILL_AFTER = 5.0  # seconds that an execution has to end in after it was interrupted
MOST_OUTPUT = 1024 * 1024
MOST_RESULT = 1024 * 1024  # characters of a result
MOST_IMAGE = 6 * 1024 * 1024  # characters of an image, in base64
MOST_IMAGES = 8
MOST_IN = 64 * 1024 * 1024
DRAINED = (
    1024 * 1024
)  # bytes that a pipe can hold at most: what has been written before an execution ended
PIECE = 65536
DATA = "/mnt/data"


def write_frame(fd: int, frame: Json) -> None:
    """Write a frame whole."""
    data = json.dumps(frame).encode()
    view = memoryview(struct.pack(">I", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


class FrameBuffer:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Json]:
        """The frames that these bytes complete."""
        self._held += data
        found = []
        while len(self._held) >= 4:
            size = int.from_bytes(self._held[:4], "big")
            if size > MOST_IN:
                raise ValueError("a frame is too large")
            if len(self._held) < 4 + size:
                break
            found.append(json.loads(bytes(self._held[4 : 4 + size])))
            del self._held[: 4 + size]
        return found


# The interpreter


class Interpreter:
    """What a caller's variables live in. It serves requests that come over a socket, one after the other."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames = FrameBuffer()
        self._waiting: list[Json] = []
        self._pid = os.getpid()
        self._number = 0
        self._loop: Any = None
        self._running = False
        self._images: list[Json] = []
        self._main = types.ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, display=self._display)
        sys.modules["__main__"] = self._main
        builtins.input = _no_input
        sys.path.insert(0, "")
        sys.argv = [""]
        os.environ.setdefault("MPLBACKEND", "module://roost_figures")
        sys.modules.setdefault("roost_figures", _figures(self._show_figures))
        sys.meta_path.append(InstalledPackages)

    def serve(self) -> None:
        """Execute what is sent until the other end is closed."""
        while (frame := self._next(0)) is not None:
            if "code" in frame:  # else it came too late, for what has ended
                answer = self._answer(frame["code"])
                if os.getpid() != self._pid:  # the code has forked, and this is the copy
                    os._exit(0)
                write_frame(self._control.fileno(), answer)

    def _next(self, flags: int) -> Json | None:
        """The next frame; None at the end, or if there is none yet and the flags say not to wait."""
        while not self._waiting:
            try:
                data = self._control.recv(PIECE, flags)
            except BlockingIOError:
                return None
            if not data:
                return None
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    def _answer(self, code: str) -> Json:
        self._images = []
        signal.signal(signal.SIGINT, self._interrupted)
        answer: Json = {}
        try:
            try:
                self._running = True
                if self._next(socket.MSG_DONTWAIT):  # only that it is to stop can come meanwhile
                    raise KeyboardInterrupt
                has_value, value = self._execute(code)
                if has_value:
                    answer["value"] = self._shown(value)
                self._show_figures()
            finally:
                self._running = False
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            answer = {"error": _error_of(error)}
        if self._images:
            answer["images"] = self._images[-MOST_IMAGES:]
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        return answer

    def _interrupted(self, number: int, frame: types.FrameType | None) -> None:
        if self._running:  # else it is seen when that begins, or there is nothing to end
            raise KeyboardInterrupt

    def _execute(self, code: str) -> tuple[bool, Any]:
        """Run a piece of code; whether it ends with an expression, and what that is."""
        self._number += 1
        name = f"<execution {self._number}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name, "exec")
        last = None
        end = tree.body[-1] if tree.body else None
        if isinstance(end, ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(end.value)
            tree.body.pop()
        if tree.body:
            self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if last is None:
            return False, None
        value = self._evaluate(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        return True, value

    def _evaluate(self, compiled: types.CodeType) -> Any:
        is_async = compiled.co_flags & 0x80  # CO_COROUTINE: there is an `await` at its top level
        asyncio = importlib.import_module("asyncio") if is_async else None  # it takes a while
        value = eval(compiled, self._main.__dict__)
        if asyncio is None:
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with suppress(BaseException):  # it was interrupted, and that is what is told
                self._loop.run_until_complete(task)
            raise

    def _shown(self, value: Any) -> Json:
        """A value as it is told: `type` and `value`. Strings and numbers are themselves, the rest is text."""
        if value is not None:
            self._main.__dict__["_"] = value
        kind = type(value)
        if value is None or kind is bool:
            return {"value": value}
        if kind is int and abs(value) < 2**53:
            return {"value": value}
        if kind is float and value - value == 0:  # else it is no number of JSON
            return {"value": value}
        if kind is str:
            return {"value": _cut(value)}
        if self._take_image(value):
            return {"value": None}
        if kind in (list, dict, tuple, set, frozenset):
            import pprint

            return {"value": _cut(pprint.pformat(value, width=79, sort_dicts=False))}
        return {"value": _cut(repr(value))}

    def _display(self, *values: Any) -> None:
        """Show values: pictures as such, and anything else as text."""
        for value in values:
            if not self._take_image(value):
                sys.stdout.write(f"{value!r}\n")

    def _take_image(self, value: Any) -> bool:
        for kind in ("png", "jpeg"):
            draw = getattr(type(value), f"_repr_{kind}_", None)
            data = draw(value) if draw is not None else None
            if isinstance(data, bytes):
                return self._add_image(kind, data)
        return False

    def _add_image(self, kind: str, data: bytes) -> bool:
        text = base64.b64encode(data).decode()
        if len(text) > MOST_IMAGE:
            sys.stderr.write(f"an image of {len(data)} bytes is too large to be shown\n")
        else:
            self._images.append({"format": kind, "base64_data": text})
        return True

    def _show_figures(self, *args: Any, **more: Any) -> None:
        """Take the figures that are open, and close them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        import io

        for number in pyplot.get_fignums():
            drawn = io.BytesIO()
            pyplot.figure(number).savefig(drawn, format="png", bbox_inches="tight")
            self._add_image("png", drawn.getvalue())
        pyplot.close("all")


def _figures(show: Any) -> types.ModuleType:
    """The module that matplotlib draws with: as its own for files, but a figure that is shown is taken."""
    module = types.ModuleType("roost_figures")

    def of_agg(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module("matplotlib.backends.backend_agg"), name)

    module.__dict__.update(__getattr__=of_agg, show=show)
    return module


class InstalledPackages:
    """Finds `pkg_resources` where it is not installed: clients ask it which packages are, before anything else."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> Any:
        """What the import system asks, after everybody else."""
        if name != "pkg_resources":
            return None
        return importlib.import_module("importlib.machinery").ModuleSpec(name, cls)

    @staticmethod
    def create_module(spec: Any) -> None:
        """As usual."""

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """Only `working_set` is there."""
        found = importlib.import_module("importlib.metadata").distributions()
        module.__dict__["working_set"] = [
            types.SimpleNamespace(project_name=name, key=name.lower(), version=each.version)
            for each in found
            if (name := each.metadata["Name"])
        ]


def _no_input(prompt: object = "") -> str:
    raise RuntimeError("input() cannot be used here: nobody is there to answer")


def _cut(text: str) -> str:
    text = text if len(text) <= MOST_RESULT else text[:MOST_RESULT] + "…"
    return text.encode(errors="backslashreplace").decode()  # half a character is none


def _error_of(error: BaseException) -> Json:
    """An error with its traceback: that of the caller's code, without what is around it."""
    try:
        told = traceback.TracebackException.from_exception(error)
        _only_theirs(told)
        text, message = "".join(told.format()), str(error)
    except BaseException:  # noqa: BLE001 - an error whose text cannot be had is still one
        text, message = f"{type(error).__name__}\n", ""
    return {"name": type(error).__name__, "message": _cut(message), "traceback": _cut(text)}


def _only_theirs(told: traceback.TracebackException) -> None:
    """Leave the frames out that are not the caller's: of code that does not compile, all of them."""
    frames = [frame for frame in told.stack if frame.filename != __file__]
    is_ours = not any(frame.filename.startswith("<execution ") for frame in frames)
    told.stack = traceback.StackSummary.from_list([] if is_ours else frames)
    for earlier in (told.__cause__, told.__context__):
        if earlier is not None:
            _only_theirs(earlier)


# The process around it


class Collected:
    """What was written to a pipe during an execution, as far as it is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()
        self.cut = False

    def add(self, data: bytes) -> None:
        """Keep what there is room for."""
        room = self._most - len(self._data)
        self.cut = self.cut or len(data) > room
        self._data += data[: max(0, room)]

    def text(self) -> str:
        """What was kept."""
        return self._data.decode(errors="replace")


class CodeProcess:
    """A process that runs code: `out` and `err` are the ends of its pipes; `control` is there for an interpreter."""

    def __init__(self, pid: int, out: int, err: int, control: socket.socket | None = None) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.control = control
        for fd in (out, err):
            os.set_blocking(fd, False)

    @property
    def controls(self) -> socket.socket:
        """The way to an interpreter."""
        assert self.control is not None, "only an interpreter has one"
        return self.control

    def signal(self, number: int) -> None:
        """Send a signal to it and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Let its pipes go."""
        os.close(self.out)
        os.close(self.err)
        if self.control is not None:
            self.control.close()


class Execution:
    """What runs now, and until when."""

    def __init__(self, frame: Json) -> None:
        self.id = frame["run"]
        self.kind = frame["kind"]
        self.code = frame["code"]
        self.began = time.monotonic()
        self.seconds = float(frame["seconds"])
        self.deadline = self.began + self.seconds
        most = min(MOST_OUTPUT, max(0, int(frame.get("most") or MOST_OUTPUT)))
        self.stdout, self.stderr = Collected(most), Collected(most)
        self.why: str | None = None
        self.child: CodeProcess | None = None
        self.started: subprocess.Popen[bytes] | None = None


class Supervisor:
    """Takes requests, one at a time; keeps an interpreter ready for the next."""

    def __init__(self, taken: int, told: int) -> None:
        self._taken = taken
        self._told = told
        self._frames = FrameBuffer()
        self._replies = FrameBuffer()
        self._queue: list[Json] = []
        self._now: Execution | None = None
        self._lost = False
        self._selector = selectors.DefaultSelector()
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        self._woken = woken
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._wakes = wakes
        self._selector.register(taken, selectors.EVENT_READ, self._take)
        self._selector.register(woken, selectors.EVENT_READ, self._look)
        self._interpreter = self._fork()

    def run(self) -> None:
        """Serve until there is nobody to serve."""
        write_frame(self._told, {"hello": os.getpid()})
        while True:
            now = self._now
            wait = None if now is None else max(0.0, now.deadline - time.monotonic())
            for key, _ in self._selector.select(wait):
                if self._selector.get_map().get(key.fd) is key:  # else it was let go since
                    key.data()
            if self._now is not None and time.monotonic() >= self._now.deadline:
                self._end(self._now, "timeout")

    def _fork(self) -> CodeProcess:
        ours, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _become_interpreter(theirs, out[1], err[1])
            finally:
                os._exit(1)
        theirs.close()
        os.close(out[1])
        os.close(err[1])
        child = CodeProcess(pid, out[0], err[0], ours)
        self._replies = FrameBuffer()
        self._watch(child)
        self._selector.register(ours, selectors.EVENT_READ, self._reply)
        return child

    def _watch(self, child: CodeProcess) -> None:
        for fd in (child.out, child.err):
            self._selector.register(fd, selectors.EVENT_READ, partial(self._read, child, fd))

    def _take(self) -> None:
        data = os.read(self._taken, PIECE)
        if not data:
            self._interpreter.signal(signal.SIGKILL)
            os._exit(0)
        for frame in self._frames.feed(data):
            if "run" in frame:
                self._queue.append(frame)
                self._next()
            elif self._now is not None and self._now.id == frame.get("stop"):
                self._end(self._now, "stopped")

    def _next(self) -> None:
        while self._now is None and self._queue:
            self._now = execution = Execution(self._queue.pop(0))
            if execution.kind == "python":
                self._begin_python(execution)
            else:
                self._begin_command(execution)

    def _begin_python(self, execution: Execution) -> None:
        self._drain(self._interpreter, None)  # what was written since the last one is nobody's
        execution.child = self._interpreter
        with suppress(OSError):  # it has died, which is noticed where its answer is read
            write_frame(self._interpreter.controls.fileno(), {"code": execution.code})

    def _begin_command(self, execution: Execution) -> None:
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        argv = execution.code if execution.kind == "exec" else [shell, "-c", execution.code]
        out, err = os.pipe(), os.pipe()
        try:
            started = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out[1], stderr=err[1], start_new_session=True
            )
        except (OSError, ValueError) as error:
            for fd in (*out, *err):
                os.close(fd)
            execution.stderr.add(f"{error}\n".encode())
            self._done(execution, {"status": "error", "exit_code": 127})
            return
        os.close(out[1])
        os.close(err[1])
        execution.child = CodeProcess(started.pid, out[0], err[0])
        execution.started = started
        self._watch(execution.child)

    def _end(self, execution: Execution, why: str) -> None:
        """Interrupt it; the second time, kill it."""
        if execution.child is None:
            return
        if execution.why is None:
            execution.why = why
            execution.deadline = time.monotonic() + KILL_AFTER
            if execution.child.control is None:
                execution.child.signal(signal.SIGTERM)
                return
            with suppress(OSError):  # for one that has not yet begun, and would not mind a signal
                write_frame(execution.child.controls.fileno(), {"stop": True})
            execution.child.signal(signal.SIGINT)
        else:
            execution.deadline = time.monotonic() + KILL_AFTER
            execution.child.signal(signal.SIGKILL)

    def _read(self, child: CodeProcess, fd: int) -> None:
        """Keep what is written during an execution, and drop what is written between two."""
        now = self._now
        kept = None
        if now is not None and now.child is child:
            kept = now.stdout if fd == child.out else now.stderr
        self._read_once(fd, kept)

    def _read_once(self, fd: int, kept: Collected | None) -> int:
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return 0
        if kept is not None:
            kept.add(data)
        if not data and fd in self._selector.get_map():
            self._selector.unregister(fd)  # all its writers are gone
        return len(data)

    def _drain(self, child: CodeProcess, execution: Execution | None) -> None:
        """Read what was written up to now, which is as much as a pipe can hold."""
        for fd in (child.out, child.err):
            kept = None
            if execution is not None:
                kept = execution.stdout if fd == child.out else execution.stderr
            left = DRAINED
            while left > 0 and (read := self._read_once(fd, kept)):
                left -= read

    def _reply(self) -> None:
        """The interpreter has ended an execution, or itself."""
        try:
            data = self._interpreter.controls.recv(PIECE)
        except OSError:
            data = b""
        try:
            frames = self._replies.feed(data) if data else None
        except ValueError:
            frames = None
        if frames is None:
            self._died()
        for answer in frames or ():
            now = self._now
            if now is not None and now.child is self._interpreter and isinstance(answer, dict):
                self._drain(self._interpreter, now)
                error = answer.get("error")
                trace = error.pop("traceback", "") if error else ""
                if trace and now.why is None:
                    now.stderr.add(str(trace).encode(errors="replace"))
                status = now.why or ("error" if error else "ok")
                self._done(now, {"status": status, **answer})

    def _died(self) -> None:
        gone, now = self._interpreter, self._now
        gone.signal(signal.SIGKILL)  # and all that it has started
        mine = now if now is not None and now.child is gone else None
        self._drain(gone, mine)
        self._forget(gone)
        _, status = os.waitpid(gone.pid, 0)
        self._lost = mine is None
        self._interpreter = self._fork()
        if mine is not None:
            code = os.waitstatus_to_exitcode(status)
            self._done(mine, {"status": mine.why or "died", "exit_code": code, "restarted": True})

    def _look(self) -> None:
        """A process has ended: perhaps the command that runs."""
        with suppress(BlockingIOError):
            self._woken.recv(PIECE)
        now = self._now
        started = None if now is None else now.started
        if now is None or now.child is None or started is None or started.poll() is None:
            return
        self._drain(now.child, now)
        self._forget(now.child)
        status = now.why or ("ok" if started.returncode == 0 else "error")
        self._done(now, {"status": status, "exit_code": started.returncode})

    def _forget(self, child: CodeProcess) -> None:
        for fd in (child.out, child.err, child.control):
            if fd is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)
        child.close()

    def _done(self, execution: Execution, answer: Json) -> None:
        self._now = None
        cut = {"stdout": execution.stdout.cut, "stderr": execution.stderr.cut}
        frame = {
            "done": execution.id,
            "stdout": execution.stdout.text(),
            "stderr": execution.stderr.text(),
            "seconds": time.monotonic() - execution.began,
            "cut": [name for name, was in cut.items() if was],
            **answer,
        }
        if self._lost and execution.kind == "python":
            self._lost, frame["lost"] = False, True
        write_frame(self._told, frame)
        self._next()


def _become_interpreter(control: socket.socket, out: int, err: int) -> None:
    """In the process that was just forked: run code until nobody asks any more."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 256)
    sys.stdout, sys.stderr = _text_to(1), _text_to(2)
    Interpreter(control).serve()
    os._exit(0)


def _text_to(fd: int) -> Any:
    how: Json = {"encoding": "utf-8", "errors": "backslashreplace", "buffering": 1}
    return open(fd, "w", closefd=False, **how)


def main() -> None:
    """Keep the pipes for frames to ourselves, and serve."""
    signal.signal(signal.SIGINT, lambda *_: None)  # what is ignored stays so in commands
    taken, told = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    with suppress(OSError):  # it is there in the sandboxes of pools
        os.chdir(DATA)
    Supervisor(taken, told).run()


if __name__ == "__main__":
    main()
