"""Turns that outlive the request that began them: started as processes of their own, and read with a cursor.

A gateway ends an execution after some minutes and cuts its output, so a turn never runs inside one. It is a process
that writes its events to a file; executions begin it, read a piece of the file, and end at once. All of them may be
sent again: a turn is begun once, by its id, and a piece is named by where it begins.

Standard library only, and one file: it is loaded into an interpreter that is not ours.

A turn's folder is `~/.roost/turns/ID`: `input` (JSON), `log` (its events), `errors`, `started` (the process that was
started), `claim` (the one that runs), `exit` (how it ended, written last). `~/.roost/taken` has the ids of turns whose
folders were removed, and `~/.roost/container` the name of this container, which is gone with it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]

HERE = Path(__file__).resolve().parents[2]
KEPT = 20  # turns whose folders are kept
KNOWN = 1000  # turns whose ids are kept longer
UPLOADS = "roost-environ"
LOOKS_EVERY = 0.02
_ID = re.compile(r"[A-Za-z0-9_-]{8,80}")
_TAIL = 400
_children: list[subprocess.Popen[bytes]] = []  # so that those that have ended are let go


class DetachedTurn:
    """A turn, by its folder."""

    def __init__(self, turn: str) -> None:
        if not _ID.fullmatch(turn):
            raise ValueError("turn: it is no id")
        self.folder = folder() / turn

    def put(self, offset: int, data: bytes) -> Json:
        """Write a piece of the input where it belongs; the same piece again changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.folder / "input", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
        return {"put": offset + len(data)}

    def over(self, where: str) -> str | None:
        """Why it cannot be begun; None: it can, or was. `where` is the container in which it may be."""
        if self.folder.exists():
            return None
        if self.folder.name in (_read(_taken()) or {}):
            return "this turn was taken before, and its events are no longer kept"
        if where != container():
            return (
                "this turn was begun in a container that is gone; whether it was taken is not known"
            )
        return None

    def begin(self, digest: str, python: str, environ: dict[str, str], *, is_known: bool) -> Json:
        """Start the process, unless it was. Of two that are started, one runs: see `claim`.

        `is_known`: there has been a conversation, so where there is none, another container had it.
        """
        if (self.folder / "exit").exists() or self.process() is not None:
            return {"begun": True}
        if is_known and not _session_file(environ).exists():
            return {"is_new": True}
        if not self._has_input(digest):
            return {"missing": True}
        _children[:] = [child for child in _children if child.poll() is None]
        with (self.folder / "log").open("ab") as log, (self.folder / "errors").open("ab") as errors:
            started = subprocess.Popen(
                [python or sys.executable, "-m", "roost.guest.turn", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                env=_environ(environ),
                start_new_session=True,
            )
        _children.append(started)
        _write(self.folder / "started", _mark(started.pid))
        _forget_old(self.folder)
        return {"begun": True}

    def _has_input(self, digest: str) -> bool:
        with suppress(OSError):
            data = (self.folder / "input").read_bytes()
            return hashlib.sha256(data).hexdigest() == digest
        return False

    def read(self, after: int, most: int, wait: float) -> tuple[Json, bytes]:
        """The events after a position, as far as they fit; waits a while for the first of them."""
        until = time.monotonic() + wait
        while True:
            if not self.folder.is_dir():
                return {"missing": True}, b""
            # How it ended is looked at first: what is read then is all that there is.
            ended = self._ended()
            data = self._log(after, most)
            if data or ended is not None or time.monotonic() >= until:
                break
            time.sleep(LOOKS_EVERY)
        if ended is None or len(data) == most:
            return {}, data
        return {"ended": ended}, data

    def claim(self) -> bool:
        """In the turn's own process: whether it is the one that runs."""
        return _write_first(self.folder / "claim", _mark(os.getpid()))

    def end(self, code: int) -> None:
        """In the turn's own process: it is over."""
        _write(self.folder / "exit", {"code": code})

    def kill(self) -> None:
        """End it, with all that it has started."""
        process = self.process()
        if process is not None:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)

    def _log(self, after: int, most: int) -> bytes:
        try:
            with (self.folder / "log").open("rb") as file:
                file.seek(after)
                return file.read(most)
        except FileNotFoundError:
            return b""

    def _ended(self) -> Json | None:
        """How it has ended; None: it runs, or was not begun."""
        known = _read(self.folder / "exit")
        if known is None and self._is_gone():
            known = _read(self.folder / "exit") or {"died": self._errors()}
        return known

    def _is_gone(self) -> bool:
        was = _read(self.folder / "claim") or _read(self.folder / "started")
        return was is not None and not runs(was)

    def process(self) -> int | None:
        """The process that runs, or has been started for that."""
        was = _read(self.folder / "claim") or _read(self.folder / "started")
        return int(was["pid"]) if was is not None and runs(was) else None

    def _errors(self) -> str:
        with suppress(OSError):
            return (self.folder / "errors").read_text(errors="replace")[-_TAIL:]
        return ""


def _session_file(environ: dict[str, str]) -> Path:
    """The file of `session_store`, which is not imported here."""
    name = "ROOST_GUEST_SESSION_FILE"
    given = environ.get(name) or os.environ.get(name)
    return Path(given) if given else Path.home() / ".roost/session.json"


def folder() -> Path:
    """Where turns are."""
    return Path.home() / ".roost" / "turns"


def container() -> str:
    """The name of this container, made when it is first asked for."""
    path = folder().parent / "container"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_first(path, {"name": os.urandom(16).hex()})
    return str((_read(path) or {}).get("name"))


def _taken() -> Path:
    return folder().parent / "taken"


def answer(asked: Json) -> str:
    """What an execution ends with: how long it is, and then a line of JSON and raw bytes, in base64."""
    told, data = _answered(asked)
    text = base64.b64encode(json.dumps(told).encode() + b"\n" + data).decode()
    return f"{len(text)}:{text}"


def _answered(asked: Json) -> tuple[Json, bytes]:
    what = asked["do"]
    if "environ" in asked:
        environ = _given(asked["environ"])
        if environ is None:
            return {"needs_environ": True}, b""
        asked = {**asked, "environ": environ}
    if what == "look":
        return {"container": container()}, b""
    if what == "read":
        return DetachedTurn(asked["turn"]).read(asked["after"], asked["most"], asked["wait"])
    does = {"put": _put, "begin": _begin, "pack": _pack, "unpack": _unpack, "kill": _kill}
    if what in does:
        return does[what](asked), b""
    return _called(asked["name"], asked["args"], asked["environ"]), b""


def _put(asked: Json) -> Json:
    data = base64.b64decode(asked["data"])
    return DetachedTurn(asked["turn"]).put(asked["offset"], data)


def _begin(asked: Json) -> Json:
    turn = DetachedTurn(asked["turn"])
    why = turn.over(asked["container"])
    if why is not None:
        return {"over": why, "container": container()}
    if "data" in asked:
        turn.put(0, base64.b64decode(asked["data"]))
    is_known = asked["is_known"]
    return turn.begin(asked["digest"], asked["python"], asked["environ"], is_known=is_known)


def _pack(asked: Json) -> Json:
    return _called("pack", [str(DetachedTurn(asked["turn"]).folder / "log")], asked["environ"])


def _unpack(asked: Json) -> Json:
    return _called("unpack", [str(DetachedTurn(asked["turn"]).folder / "input")], asked["environ"])


def _kill(asked: Json) -> Json:
    for path in folder().glob("*"):
        DetachedTurn(path.name).kill()
    return {}


def _called(name: str, args: list[Any], environ: dict[str, str]) -> Json:
    """Call a function of the package that answers at once, in a process of its own."""
    code = (
        "import json, sys\nfrom roost import guest\n"
        "print(json.dumps(getattr(guest, sys.argv[1])(*json.loads(sys.argv[2]))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, name, json.dumps(args)],
        env=_environ(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if ran.returncode != 0:
        return {"failed": ran.stderr.decode(errors="replace")[-_TAIL:]}
    return {"value": json.loads(ran.stdout)}


def _given(name: str) -> dict[str, str] | None:
    """The variables in a file that was uploaded under this name; None: it was not.

    It is moved out of the files that a pool may keep for long, to where they end with the container.
    """
    if not name:
        return {}
    if not _ID.fullmatch(name):
        raise ValueError("environ: it is no name")
    kept = Path(tempfile.gettempdir()) / f"roost-{name}"
    for base in (Path("/mnt/data"), Path.cwd(), Path.home()):
        uploaded = base / UPLOADS / name
        with suppress(OSError):
            data = uploaded.read_bytes()
            _write(kept, json.loads(data))
            uploaded.unlink()
            uploaded.parent.rmdir()
    return _read(kept)


def _environ(added: dict[str, str]) -> dict[str, str]:
    made = {**os.environ, **added, "PYTHONDONTWRITEBYTECODE": "1"}
    made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), made.get("PYTHONPATH")]))
    return made


def _mark(pid: int) -> Json:
    """A process so that it can be told from a later one with the same number."""
    return {"pid": pid, "since": _since(pid)}


def _since(pid: int) -> str:
    """When it was started, or "" if it is not there; one that has ended and is only not yet reaped is not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def runs(was: Json) -> bool:
    """Whether that process is still there, and not another one with its number."""
    return bool(was["since"]) and _since(int(was["pid"])) == was["since"]


def _read(path: Path) -> Json | None:
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def _write(path: Path, value: Json) -> None:
    made = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file)
    made.replace(path)


def _write_first(path: Path, value: Json) -> bool:
    """The same, unless it is there already: of several that write at once, one does."""
    made = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    _write(made, value)
    try:
        os.link(made, path)
    except FileExistsError:
        return False
    finally:
        made.unlink()
    return True


def _forget_old(newest: Path) -> None:
    """Remove the folders that were made longest ago, but for those of turns that run. Their ids are kept."""
    known = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    old = [path for path in known[:-KEPT] if DetachedTurn(path.name).process() is None]
    turns = [path.name for path in old if (path / "claim").exists()]
    if turns:
        ids = [*(_read(_taken()) or {}), *turns]
        _write(_taken(), dict.fromkeys(ids[-KNOWN:], True))
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
