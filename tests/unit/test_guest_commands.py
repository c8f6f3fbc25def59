"""What runs commands in a container stays alive, and what it packs is one archive at a time."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from roost.guest import commands
from roost.guest.commands import CommandSupervisor, Files, Names

Json = dict[str, Any]


def config_in(folder: Path) -> Json:
    for name in ("home", "exchange"):
        (folder / name).mkdir()
    return {"folder": str(folder / "exchange"), "kept": ["/workspace"], "leash": 60.0}


def files_in(folder: Path) -> Files:
    names = Names()
    made = Files(names, config_in(folder))
    names.add("/workspace", str(folder / "home"))
    made._known = [made._seen("/workspace")]
    return made


def test_what_does_not_fit_into_a_file_is_answered_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CommandSupervisor(config_in(tmp_path))

    def full(self: Files, at: int, data: bytes) -> str:
        raise OSError("no room")

    monkeypatch.setattr(Files, "put_out", full)
    made._out.put(b"O", 2, b"x" * 5000)
    near, far = socket.socketpair()
    made._waiters.append((far, {"after": 0, "most": 1000}, time.monotonic()))
    with near:
        made._serve()
        near.settimeout(60)
        head, _, data = near.makefile("rb").read().partition(b"\n")
    assert json.loads(head) == {"size": 1000, "sum": zlib.crc32(data)}
    assert data == made._out.after(0, 1000)


def test_commands_end_with_what_runs_them_also_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    made = CommandSupervisor(config_in(tmp_path))

    def fail() -> None:
        raise OSError("a fault")

    for name in ("settle", "kill_all"):
        owner = made._files if name == "settle" else commands
        monkeypatch.setattr(owner, name, lambda: killed.append(True))
    killed.clear()
    for name in ("set_wakeup_fd", "signal"):
        monkeypatch.setattr(commands.signal, name, lambda *about, **more: None)
    monkeypatch.setattr(made, "_listen", lambda: None)
    monkeypatch.setattr(made, "_look", fail)
    monkeypatch.setattr(made, "_reap", killed.clear)
    with pytest.raises(OSError, match="a fault"):
        made.run()
    assert killed == [True]


def test_archives_that_are_asked_for_at_once_are_made_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files_in(tmp_path)
    (tmp_path / "home" / "file").write_text("file")
    seen, at_once, most = made._seen, 0, 0
    told: list[Json] = []

    def slow(place: str) -> dict[str, list[Any]]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        at_once -= 1
        return seen(place)

    monkeypatch.setattr(made, "_seen", slow)
    threads = [threading.Thread(target=lambda: told.append(made.pack(1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    names = [each["parts"][0][0] for each in told]
    assert sorted(names) == ["down-1-0", "down-2-0", "down-3-0"]
    assert [path.name for path in (tmp_path / "exchange").iterdir()] == ["down-3-0"]
    assert [each["changed"] for each in told] == [1, 1, 1]
