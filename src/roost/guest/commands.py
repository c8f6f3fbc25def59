"""Runs commands for a server elsewhere, whose only ways in are executions of code and files.

    python3 -I commands.py CONFIG

What goes in and what comes out are two streams of frames: a kind (one byte), a channel, a size, and so many bytes. What
goes in comes as numbered files; each is taken once, and in its turn. What comes out is kept until it is said to have
arrived, and is asked for by its position through a socket, the `door`. So whatever is cut off on the way is asked for or
sent again, and nothing is lost or done twice. A channel is a command, a connection to one of the server's endpoints, or
a question. Each has a window, so that nothing is collected here without a limit.

All commands end when nobody has come to the door for a while: then the server is gone.

Standard library only, and one file: it is started in a container that has nothing of ours.
"""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import io
import json
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

Json = dict[str, Any]

HEADER = struct.Struct(">cII")
PIECE = struct.Struct(">II")  # of an input file: its sum and its size
WINDOW = 256 * 1024  # bytes of a channel that were not taken yet
LARGE = 8 * 1024 * 1024  # bytes of what comes out in one file
PART = 32 * 1024 * 1024  # bytes of an archive in one file
ERRORS = 64 * 1024
WITH_HOLES = (
    b"R"  # of a member of an archive: a line with the size and where there is data, then the data
)
SMALL_HOLE = 64 * 1024
MOST_PIECES = 1000  # of data in a file with holes
QUICK, SLOW = 0.004, 0.02  # seconds between two looks for input
ROOTS = ("/opt/roost-sandbox", "/var/roost-sandbox", "~/.roost-sandbox", "/tmp/roost-sandbox")
EXCHANGE = "roost-exchange"
_SUBREAPER = 36
_BEFORE_PORT = r"(?:(?<=127\.0\.0\.1:)|(?<=localhost:)|(?<=[pP]ort=))"
_AS_IT_IS: Json = (
    {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
)  # it is the server's


class Outgoing:
    """What comes out, from the first byte that has not arrived."""

    def __init__(self) -> None:
        self.begins = 0
        self._data = bytearray()

    @property
    def ends(self) -> int:
        """The position after the last byte."""
        return self.begins + len(self._data)

    def put(self, kind: bytes, channel: int, data: bytes = b"") -> None:
        """Add a frame."""
        self._data += HEADER.pack(kind, channel, len(data)) + data

    def arrived(self, position: int) -> None:
        """All before this is there, and need not be kept."""
        if position > self.begins:
            del self._data[: position - self.begins]
            self.begins = position

    def after(self, position: int, most: int) -> bytes:
        """The bytes from there on."""
        start = position - self.begins
        return bytes(self._data[start : start + most]) if start >= 0 else b""


class Names:
    """Where what a plan names is in this container; most of it is where it is named."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}
        self._ports: dict[str, str] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, str]]] = []

    def add(self, named: str, real: str) -> None:
        """Something is there."""
        self.real[named] = real
        self._settle()

    def move_port(self, named: int, real: int) -> None:
        """A port is another one, because something else has it here."""
        self._ports[str(named)] = str(real)
        self._settle()

    def _settle(self) -> None:
        paths = {named: real for named, real in self.real.items() if named != real}
        around = ((r"(?<![\w./-])", paths, r"(?![\w.-])"), (_BEFORE_PORT, self._ports, r"(?!\d)"))
        self._patterns = [
            (re.compile(f"{before}({'|'.join(map(re.escape, _longest(moved)))}){after}"), moved)
            for before, moved, after in around
            if moved
        ]

    def on(self, text: str) -> str:
        """The text with the names replaced."""
        for pattern, moved in self._patterns:
            text = pattern.sub(lambda found, moved=moved: moved[found[1]], text)  # type: ignore[misc]
        return text


def _longest(words: dict[str, str]) -> list[str]:
    return sorted(words, key=len, reverse=True)


class Carried:
    """What a channel is. `window` is how much of what comes from it the server still takes."""

    def __init__(self) -> None:
        self.window = WINDOW
        self.waiting = bytearray()
        self.taken = 0  # of what goes to it, since that was last said
        self.is_ended = False  # what goes to it


class Command(Carried):
    """A command with pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.process = process
        self.errors = bytearray()


class PortConnection(Carried):
    """A connection from inside to an endpoint."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__()
        self.stream = stream
        self.has_ended = False  # what comes from it


class CommandSupervisor:
    """All commands of one sandbox."""

    def __init__(self, config: Json) -> None:
        self._config = config
        self._folder: str = config["folder"]
        self._selector = selectors.DefaultSelector()
        self._out = Outgoing()
        self._names = Names()
        self._commands: dict[int, Command] = {}
        self._pids: dict[int, int] = {}
        self._connections: dict[int, PortConnection] = {}
        self._next_connection = 1
        self._next_input = 1
        self._heard = time.monotonic()
        self._looked = 0.0
        self._waiters: list[tuple[socket.socket, Json, float]] = []
        self._answers: list[tuple[int, Json]] = []
        self._files = Files(self._names, config)
        self._handed: Json | None = None
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Until the server is gone, or has its container ended."""
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._watch(self._woken, selectors.EVENT_READ, self._rouse)
        self._files.settle()
        self._listen()
        self._say(b"H", 0, {"names": self._names.real})
        try:
            while time.monotonic() - self._heard < self._config["leash"]:
                for key, events in self._selector.select(self._pause()):
                    key.data(events)
                self._reap()
                self._look()
                self._tell()
                self._serve()
        finally:
            kill_all()

    # The door

    def _listen(self) -> None:
        door = socket.socket(socket.AF_UNIX)
        made = f"{self._config['door']}.made"
        door.bind(made)
        door.listen(8)
        for index, endpoint in enumerate(self._config["endpoints"]):
            for listener in self._listeners(endpoint):
                self._watch(listener, selectors.EVENT_READ, partial(self._accept, listener, index))
        self._watch(door, selectors.EVENT_READ, lambda events: self._knock(door))
        os.rename(made, self._config["door"])  # from now on it is open

    def _listeners(self, endpoint: Json) -> list[socket.socket]:
        made = []
        path = self._files.socket_path(endpoint["socket"])
        if path is not None:
            named = socket.socket(socket.AF_UNIX)
            named.bind(path)
            made.append(named)
        if endpoint["port"] is not None:
            port = socket.socket()
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                port.bind(("127.0.0.1", endpoint["port"]))
            except OSError:
                port.bind(("127.0.0.1", 0))
                self._names.move_port(endpoint["port"], port.getsockname()[1])
            made.append(port)
        for listener in made:
            listener.listen(128)
            listener.setblocking(False)
        return made

    def _knock(self, door: socket.socket) -> None:
        """Somebody asks for what comes out. The one before has hung up, or will not mind."""
        with suppress(OSError):
            stream, _ = door.accept()
            stream.settimeout(10)
            asked = json.loads(stream.makefile("rb").readline() or b"{}")
            self._heard = time.monotonic()
            if asked.get("do") == "hand_over":
                self._hand_over(stream)
            elif asked:
                self._out.arrived(asked["after"])
                self._files.tidy(asked["after"])
                self._waiters.append((stream, asked, time.monotonic() + asked["wait"]))

    def _hand_over(self, stream: socket.socket) -> None:
        """Another server asks for the files: the one before is gone. All commands end, and nothing is changed any more."""
        if self._handed is None:
            self._handed = {}
            kill_all()
            self._reap()
            threading.Thread(target=self._pack_all, daemon=True).start()
        with suppress(OSError), stream:
            stream.sendall(json.dumps(self._handed).encode())

    def _pack_all(self) -> None:
        try:
            self._handed = self._files.hand_over()
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            self._handed = {"failed": f"{type(error).__name__}: {error}"}

    def _serve(self) -> None:
        """Answer whoever waits, if there is something for him, or he has waited long enough."""
        now = time.monotonic()
        if self._waiters:
            self._heard = now
        for waiter in list(self._waiters):
            stream, asked, until = waiter
            data = self._out.after(asked["after"], LARGE)
            if not data and now < until:
                continue
            self._waiters.remove(waiter)
            name = None
            if len(data) > asked["most"]:
                try:
                    name = self._files.put_out(asked["after"], data)
                except OSError:  # there is no room: as much of it as an answer holds
                    data = data[: asked["most"]]
            head: Json = {"sum": zlib.crc32(data), "size": len(data)}
            if name is not None:
                head["file"], data = name, b""
            with suppress(OSError), stream:
                stream.sendall(json.dumps(head).encode() + b"\n" + data)

    def _pause(self) -> float:
        is_busy = time.monotonic() - self._looked < 1.0
        until = min([u for _, _, u in self._waiters], default=time.monotonic() + 60)
        return max(0.0, min(QUICK if is_busy else SLOW, until - time.monotonic()))

    # What goes in

    def _look(self) -> None:
        """Take the inputs that are there, in order."""
        while True:
            path = self._input(self._next_input)
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except OSError:
                return
            whole = len(data) >= PIECE.size and PIECE.unpack_from(data)
            frames = data[PIECE.size :]
            if not whole or whole != (zlib.crc32(frames), len(frames)):
                return  # it is still being written
            # Whoever has sent it may still be looking at it, but not at the one before.
            with suppress(OSError):
                os.unlink(self._input(self._next_input - 1))
            self._next_input += 1
            self._looked = self._heard = time.monotonic()
            self._take(frames)

    def _input(self, number: int) -> str:
        return os.path.join(self._folder, f"in-{number:08d}")

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            kind, channel, size = HEADER.unpack_from(data, at)
            at += HEADER.size
            self._do(kind, channel, data[at : at + size])
            at += size

    def _do(self, kind: bytes, channel: int, data: bytes) -> None:
        if kind == b"S":
            self._spawn(channel, json.loads(data))
        elif kind == b"Q":
            self._ask(channel, json.loads(data))
        elif found := self._commands.get(channel) or self._connections.get(channel):
            self._to_channel(kind, channel, found, data)
        elif kind == b"I":
            self._out.put(b"G", channel)

    def _to_channel(
        self, kind: bytes, channel: int, found: Command | PortConnection, data: bytes
    ) -> None:
        if kind == b"I":
            found.waiting += data
        elif kind == b"E":
            found.is_ended = True
        elif kind == b"T":
            found.window += int(data)
        if isinstance(found, PortConnection):
            if kind == b"X":
                self._close(channel)
            else:
                self._carry(channel, selectors.EVENT_WRITE)
            return
        if kind == b"K":
            self._signal(found.process.pid, int(data))
        self._feed(channel, found)
        self._watch_output(channel, found)

    # Commands

    def _spawn(self, channel: int, asked: Json) -> None:
        environ = {name: self._names.on(value) for name, value in asked["environ"].items()}
        argv = [self._names.on(word) for word in asked["argv"]]
        limits = self._config["limits"]

        def prepare() -> None:
            for kind, most in (
                (resource.RLIMIT_NOFILE, limits["files"]),
                (resource.RLIMIT_FSIZE, limits["size"]),
            ):
                hard = resource.getrlimit(kind)[1]
                if most and (hard < 0 or most < hard):
                    resource.setrlimit(kind, (most, most))

        script = 'unset OLDPWD SHLVL; exec "$@"'
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", script, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environ,
                cwd=self._names.on(asked["cwd"]),
                start_new_session=True,
                preexec_fn=prepare,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._say(b"F", channel, {"why": str(error)})
            return
        command = Command(process)
        self._commands[channel] = command
        self._pids[process.pid] = channel
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        assert process.stderr is not None
        self._watch(
            process.stderr, selectors.EVENT_READ, lambda events: self._read_errors(channel, command)
        )
        self._say(b"B", channel, {"pid": process.pid})
        self._watch_output(channel, command)

    def _watch_output(self, channel: int, command: Command) -> None:
        """Read what it writes, unless the server does not take it."""
        pipe = command.process.stdout
        assert pipe is not None
        if pipe.closed:
            return
        wanted = selectors.EVENT_READ if command.window > 0 else 0
        self._watch(pipe, wanted, lambda events: self._read_output(channel, command))

    def _read_output(self, channel: int, command: Command) -> None:
        pipe = command.process.stdout
        assert pipe is not None
        try:
            data = os.read(pipe.fileno(), min(65536, command.window))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            command.window -= len(data)
            self._out.put(b"O", channel, data)
            self._watch_output(channel, command)
            return
        self._watch(pipe, 0, None)
        pipe.close()
        self._out.put(b"D", channel)
        self._forget(channel, command)

    def _read_errors(self, channel: int, command: Command) -> None:
        pipe = command.process.stderr
        assert pipe is not None
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        command.errors += data
        del command.errors[:-ERRORS]
        if not data:
            self._watch(pipe, 0, None)
            pipe.close()
            self._forget(channel, command)

    def _forget(self, channel: int, command: Command) -> None:
        """Let go of a command that has ended, with all that it has said."""
        process = command.process
        outputs = (process.stdout, process.stderr)
        if process.returncode is None or not all(pipe is None or pipe.closed for pipe in outputs):
            return
        if process.stdin is not None and not process.stdin.closed:
            self._watch(process.stdin, 0, None)
            process.stdin.close()
        self._commands.pop(channel, None)

    def _tell(self) -> None:
        """Send what is on standard error, as far as the server keeps up, and what was answered."""
        while self._answers:
            self._say(b"A", *self._answers.pop(0))
        if self._out.ends - self._out.begins > WINDOW:
            return
        for channel, command in self._commands.items():
            if command.errors:
                self._out.put(b"R", channel, bytes(command.errors))
                command.errors.clear()

    def _feed(self, channel: int, command: Command) -> None:
        pipe = command.process.stdin
        assert pipe is not None
        if pipe.closed:
            if command.waiting:
                command.waiting.clear()
                self._out.put(b"G", channel)
            return
        try:
            if command.waiting:
                written = os.write(pipe.fileno(), command.waiting)
                del command.waiting[:written]
                self._took(channel, command, written)
        except BlockingIOError:
            pass
        except OSError:
            command.waiting.clear()
            command.is_ended = True
            self._out.put(b"G", channel)
        wanted = selectors.EVENT_WRITE if command.waiting else 0
        self._watch(pipe, wanted, lambda events: self._feed(channel, command))
        if command.is_ended and not command.waiting:
            self._watch(pipe, 0, None)
            pipe.close()

    def _signal(self, pid: int, number: int) -> None:
        with suppress(OSError):
            if number == signal.SIGKILL:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            channel = self._pids.pop(pid, None)
            if channel is not None:
                self._ended(channel, os.waitstatus_to_exitcode(status))

    def _ended(self, channel: int, code: int) -> None:
        command = self._commands[channel]
        command.process.returncode = code
        if command.process.stderr is not None and not command.process.stderr.closed:
            self._read_errors(channel, command)
        if command.errors:
            self._out.put(b"R", channel, bytes(command.errors))
            command.errors.clear()
        self._out.put(b"Z", channel, str(code).encode())
        self._forget(channel, command)

    # Connections

    def _accept(self, listener: socket.socket, index: int, events: int) -> None:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        stream.setblocking(False)
        channel, self._next_connection = self._next_connection, self._next_connection + 2
        self._connections[channel] = PortConnection(stream)
        self._out.put(b"C", channel, str(index).encode())
        self._carry(channel, 0)

    def _carry(self, channel: int, events: int) -> None:
        made = self._connections.get(channel)
        if made is None:
            return
        try:
            if events & selectors.EVENT_READ and made.window > 0 and not made.has_ended:
                self._from_inside(channel, made)
            if made.waiting:
                with suppress(BlockingIOError):
                    written = made.stream.send(made.waiting)
                    del made.waiting[:written]
                    self._took(channel, made, written)
            if made.is_ended and not made.waiting:
                made.is_ended = False
                made.stream.shutdown(socket.SHUT_WR)
        except OSError:
            self._out.put(b"X", channel)
            self._close(channel)
            return
        wanted = selectors.EVENT_READ if made.window > 0 and not made.has_ended else 0
        wanted |= selectors.EVENT_WRITE if made.waiting else 0
        self._watch(made.stream, wanted, lambda found: self._carry(channel, found))

    def _from_inside(self, channel: int, made: PortConnection) -> None:
        try:
            data = made.stream.recv(min(65536, made.window))
        except BlockingIOError:
            return
        if data:
            made.window -= len(data)
            self._out.put(b"O", channel, data)
        else:
            made.has_ended = True
            self._out.put(b"D", channel)

    def _close(self, channel: int) -> None:
        made = self._connections.pop(channel)
        self._watch(made.stream, 0, None)
        made.stream.close()

    # Questions

    def _ask(self, channel: int, asked: Json) -> None:
        """What takes long is answered later, beside all else."""
        if asked["do"] == "stop":
            kill_all()
            self._reap()
            self._answers.append((channel, {}))
        elif asked["do"] == "stats":
            self._answers.append((channel, used()))
        else:
            threading.Thread(target=self._answer, args=(channel, asked), daemon=True).start()

    def _answer(self, channel: int, asked: Json) -> None:
        try:
            told = getattr(self._files, asked.pop("do"))(**asked)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            told = {"failed": f"{type(error).__name__}: {error}"}
        self._answers.append((channel, told))
        os.write(self._wake, b"\0")

    # Small things

    def _took(self, channel: int, what: Carried, size: int) -> None:
        """Say how much was taken, now and then: each time is one more answer to wait for."""
        what.taken += size
        if what.taken >= WINDOW // 4:
            self._out.put(b"T", channel, str(what.taken).encode())
            what.taken = 0

    def _say(self, kind: bytes, channel: int, told: Json) -> None:
        self._out.put(kind, channel, json.dumps(told).encode())

    def _rouse(self, events: int) -> None:
        with suppress(BlockingIOError):
            while os.read(self._woken, 4096):
                pass

    def _watch(self, what: Any, events: int, call: Callable[[int], object] | None) -> None:
        try:
            known = self._selector.get_key(what)
        except (KeyError, ValueError):
            if events:
                self._selector.register(what, events, call)
            return
        if not events:
            self._selector.unregister(what)
        elif known.events != events:
            self._selector.modify(what, events, call)


class Files:
    """What the plan shows, and what was changed of it."""

    def __init__(self, names: Names, config: Json) -> None:
        self._names = names
        self._config = config
        self._folder: str = config["folder"]
        self._root = ""
        self._known: list[dict[str, list[Any]]] = []  # of each place that comes back
        self._next: list[dict[str, list[Any]]] = []
        self._number = 0
        self._packing = threading.Lock()
        self._archives = 0
        self._parts: list[list[Any]] = []  # of the last archive
        self._out: list[tuple[int, str]] = []

    def settle(self) -> None:
        """Find room for the home, the workspace and what else is named."""
        self._root = first_room()
        workspace = room_at("/workspace", f"{self._root}/workspace")
        home = "/home/sandbox"
        if self._config["is_one"]:
            same = os.path.isdir(home) and os.path.samefile(home, workspace)
            self._names.add(home, home if same else workspace)
        else:
            home = room_at(home, f"{self._root}/home")
            if os.path.samefile(home, workspace):
                home = room_at(f"{self._root}/home", f"{self._root}/home")
            self._names.add("/home/sandbox", home)
        for name in ("/workspace", *self._config["aliases"]):
            self._names.add(name, workspace)
        for index, (target, is_folder) in enumerate(self._config["targets"]):
            spare = f"{self._root}/mounts/{index}"
            if is_folder:
                self._names.add(target, room_at(target, spare))
            else:
                folder, name = os.path.split(target)
                self._names.add(target, f"{room_at(folder, spare, target)}/{name}")

    def socket_path(self, target: str) -> str | None:
        """Where an endpoint's socket is made."""
        folder, name = os.path.split(target)
        path = f"{room_at(folder, f'{self._root}/sockets')}/{name}"
        if len(os.fsencode(path)) > 100:
            return None
        with suppress(OSError):
            os.unlink(path)
        self._names.add(target, path)
        return path

    def has(self, files: list[list[Any]]) -> Json:
        """Which of these files are there already, with this size and sum."""
        return {"has": [self._has(*file) for file in files]}

    def _has(self, target: str, size: int, digest: str) -> bool:
        with suppress(OSError):
            if os.stat(target).st_size != size:
                return False
            with open(target, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                    self._names.add(target, target)
                    return True
        return False

    def unpack(
        self, parts: list[str], places: list[str], wiped: list[str], kept: list[str]
    ) -> Json:
        """Fill the places from an archive; those that are `wiped` have nothing else, and `kept` come back."""
        for place in wiped:
            self._wipe(self._names.real[place])
        with tarfile.open(
            fileobj=Parts([self._file(part) for part in parts]), mode="r|gz"
        ) as archive:
            folders = []
            for member in archive:
                index, _, path = member.name.partition("/")
                real = self._names.real[places[int(index)]]
                member.name, mode = path or os.path.basename(real), member.mode
                member.mode |= stat.S_IRWXU if member.isdir() else 0
                if member.type == WITH_HOLES:
                    put_with_holes(archive, member, os.path.join(real, path))
                else:
                    archive.extract(member, real if path else os.path.dirname(real), **_AS_IT_IS)
                if member.isdir():
                    folders.append((os.path.join(real, path), mode, member.mtime))
            for path, mode, mtime in reversed(folders):  # nothing more is put into them
                os.chmod(path, mode)
                os.utime(path, (mtime, mtime))
        for part in parts:
            os.unlink(self._file(part))
        self._config["kept"] = kept
        self._known = [self._seen(place) for place in kept]
        return {}

    def pack(self, number: int) -> Json:
        """Write what was changed since the last archive that has arrived into a new one; the same number again
        means that the last one has not. One is made at a time, and no two have a part of the same name.
        """
        with self._packing:
            return self._pack(number)

    def _pack(self, number: int) -> Json:
        self.packed([part[0] for part in self._parts])
        if number > self._number:
            self._number = number
            if self._next:
                self._known = self._next
        seen = [self._seen(place) for place in self._config["kept"]]
        gone, changed = [], 0
        self._archives += 1
        writer = Writer(self._folder, self._archives)
        self._parts = writer.names
        with (
            gzip.GzipFile(fileobj=writer, mode="wb", compresslevel=1) as packed,  # type: ignore[call-overload]
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
        ):
            for index, (before, now) in enumerate(zip(self._known, seen, strict=True)):
                real = self._names.real[self._config["kept"][index]]
                gone += [[index, path] for path in before if path not in now]
                for path, what in now.items():
                    if before.get(path) != what and self._add(archive, real, index, path):
                        changed += 1
        writer.close()
        self._next = seen
        gone.sort(reverse=True)
        return {"parts": writer.names, "gone": gone, "changed": changed}

    def hand_over(self) -> Json:
        """An archive of what was changed since the last one that is known to have arrived, and of which places."""
        return {**self.pack(max(self._number, 1)), "kept": self._config["kept"]}

    def packed(self, parts: list[str]) -> Json:
        """Remove an archive that has arrived."""
        for part in parts:
            with suppress(OSError):
                os.unlink(self._file(part))
        return {}

    def _add(self, archive: tarfile.TarFile, real: str, index: int, path: str) -> bool:
        full = os.path.join(real, path)
        try:
            member = archive.gettarinfo(full, f"{index}/{path}")
            member.type = tarfile.REGTYPE if member.islnk() else member.type
            if not member.isreg():
                archive.addfile(member)
                return True
            with open(full, "rb") as file:
                pieces = Pieces(file.fileno())
                if pieces.head:
                    member.type = WITH_HOLES
                member.size = pieces.size
                archive.addfile(member, pieces)  # type: ignore[arg-type]
        except OSError:
            return False  # it is gone meanwhile, or nobody may read it
        return True

    def _seen(self, place: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        top = self._names.real[place]
        for folder, folders, files in os.walk(top):
            if folder == top and EXCHANGE in folders:
                folders.remove(EXCHANGE)
            for name in (*folders, *files):
                full = os.path.join(folder, name)
                with suppress(OSError):
                    status = os.lstat(full)
                    found[os.path.relpath(full, top)] = _mark(status)
        return found

    def _wipe(self, top: str) -> None:
        for name in os.listdir(top):
            path = os.path.join(top, name)
            if name == EXCHANGE or os.path.realpath(path) in (self._root, self._folder):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)

    def put_out(self, at: int, data: bytes) -> str:
        """What comes out, as a file."""
        name = f"out-{at}"
        with open(self._file(name), "wb") as file:
            file.write(data)
        if (at, name) not in self._out:
            self._out.append((at, name))
        return name

    def tidy(self, after: int) -> None:
        """Remove the files of what has arrived."""
        while self._out and self._out[0][0] < after:
            with suppress(OSError):
                os.unlink(self._file(self._out.pop(0)[1]))

    def _file(self, name: str) -> str:
        return os.path.join(self._folder, name)


class Parts(io.RawIOBase):
    """Files, one after the other, as one."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = list(paths)
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer than that many only at the end."""
        made = b""
        while len(made) < size and (self._file or self._paths):
            if self._file is None:
                self._file = open(self._paths.pop(0), "rb")  # noqa: SIM115 - closed below
            data = self._file.read(size - len(made))
            made += data
            if not data:
                self._file.close()
                self._file = None
        return made


class Writer:
    """One file, in parts."""

    def __init__(self, folder: str, number: int) -> None:
        self.names: list[list[Any]] = []
        self._prefix = os.path.join(folder, f"down-{number}")
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Add bytes."""
        self._data += data
        while len(self._data) >= PART:
            self._flush(PART)
        return len(data)

    def close(self) -> None:
        """Write the last part."""
        if self._data:
            self._flush(len(self._data))

    def _flush(self, size: int) -> None:
        path = f"{self._prefix}-{len(self.names)}"
        data = bytes(self._data[:size])
        self.names.append([os.path.basename(path), len(data), zlib.crc32(data)])
        with open(path, "wb") as file:
            file.write(data)
        del self._data[:size]


class Pieces:
    """What is sent of a file: as many bytes as it has now, whatever happens to it, but for large holes.

    If there are some, the first line (`head`) says how large it is, and where there is data.
    """

    def __init__(self, file: int) -> None:
        size = os.fstat(file).st_size
        self._file = file
        self._left = data_in(file, size)
        is_whole = self._left == [[0, size]]
        self.head = b"" if is_whole else json.dumps([size, self._left]).encode() + b"\n"
        self.size = len(self.head) + sum(ends - begins for begins, ends in self._left)
        self._held = self.head

    def read(self, size: int) -> bytes:
        """The next bytes."""
        made, self._held = self._held[:size], self._held[size:]
        while len(made) < size and self._left:
            begins, ends = self._left[0]
            wanted = min(size - len(made), ends - begins)
            made += os.pread(self._file, wanted, begins).ljust(wanted, b"\0")
            self._left[0] = [begins + wanted, ends]
            if begins + wanted == ends:
                del self._left[0]
        return made


def data_in(file: int, size: int) -> list[list[int]]:
    """Where there is data in a file: from, to. Small holes count as data, and all do if there are too many."""
    if not size or os.fstat(file).st_blocks * 512 >= size:
        return [[0, size]]
    found: list[list[int]] = []
    at = 0
    while at < size:
        try:
            begins = os.lseek(file, at, os.SEEK_DATA)
        except OSError:  # there is no more
            break
        at = min(os.lseek(file, begins, os.SEEK_HOLE), size)
        if at <= begins:
            break
        found.append([begins, at])
    smallest = SMALL_HOLE
    while True:
        found = _joined(found, smallest)
        if len(found) <= MOST_PIECES:
            return found
        smallest *= 2


def _joined(pieces: list[list[int]], smallest: int) -> list[list[int]]:
    """The pieces without smaller holes than that between them."""
    made: list[list[int]] = []
    for begins, ends in pieces:
        if made and begins - made[-1][1] < smallest:
            made[-1][1] = ends
        else:
            made.append([begins, ends])
    return made


def put_with_holes(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Make a file of such a member."""
    content = archive.extractfile(member)
    assert content is not None
    size, pieces = json.loads(content.readline())
    with suppress(OSError):
        os.unlink(path)
    with open(path, "xb") as file:
        for begins, ends in pieces:
            file.seek(begins)
            while begins < ends:
                data = content.read(min(ends - begins, 1024 * 1024))
                begins += file.write(data)
        file.truncate(size)
    os.chmod(path, member.mode)
    os.utime(path, (member.mtime, member.mtime))


def _mark(status: os.stat_result) -> list[Any]:
    """What is another one if something was changed. A directory's times tell nothing: what is in it does."""
    if stat.S_ISDIR(status.st_mode):
        return [status.st_mode]
    return [status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def first_room() -> str:
    """A directory for what has no other place."""
    for root in ROOTS:
        made = os.path.expanduser(root)
        with suppress(OSError):
            os.makedirs(made, 0o755, exist_ok=True)
            if os.access(made, os.W_OK | os.X_OK):
                return made
    raise OSError("there is no room in the container")


def room_at(wanted: str, spare: str, file: str = "") -> str:
    """A directory that can be written to: the wanted one, if it is, or can be made; `file` is to be put there."""
    with suppress(OSError):
        os.makedirs(wanted, 0o755, exist_ok=True)
        if os.access(wanted, os.W_OK | os.X_OK) and not os.path.exists(file):
            return wanted
    os.makedirs(spare, 0o755, exist_ok=True)
    return spare


def descendants() -> list[int]:
    """All that came from this process. It is the parent of those whose own parent has ended."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents.setdefault(int(fields[1]), []).append(int(name))
    found = list(parents.get(os.getpid(), ()))
    for pid in found:
        found += parents.get(pid, ())
    return found


def kill_all() -> None:
    """Stopped before they are killed: else one could fork while it is being looked for."""
    until = time.monotonic() + 10
    while (found := descendants()) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.002)


def used() -> Json:
    """What all commands use now."""
    pages = ticks = 0
    found = descendants()
    for pid in found:
        with suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            pages += int(fields[21])
    return {
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "processes": len(found),
        "cpu_seconds": ticks / os.sysconf("SC_CLK_TCK"),
    }


def main(path: str) -> None:
    """Run until it is over."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    CommandSupervisor(config).run()


if __name__ == "__main__":
    main(sys.argv[1])
