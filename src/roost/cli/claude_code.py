"""A session of Claude Code on this machine, as an archive that a server takes in.

Its transcript goes where the agent in a sandbox looks for it, and the directory it worked in becomes the
workspace. What was said is in the log, so that people can read it; what the agent remembers is in the
transcript.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from roost.domain.archive import Card
from roost.domain.events import Entry
from roost.domain.snapshot import LONGEST_PATH
from roost.errors import InvalidRequest
from roost.ports.drafts import new_draft
from roost.sandboxes.tree import LocalTree
from roost.stores.archives import FolderArchives

_SHELF = (
    ".claude/projects/-workspace"  # the name that the program gives to what it did in /workspace
)
_LEFT_OUT = {".claude"}
_MOST = 1 << 40


@contextmanager
def packed(transcript: Path, workdir: Path | None) -> Generator[BinaryIO, None, None]:
    """An archive of the session that this transcript is of. :raises InvalidRequest: it is none"""
    name = _name_of(transcript)
    lines = list(_lines(transcript))
    said = [frame["cwd"] for frame in lines if isinstance(frame.get("cwd"), str)]
    source = workdir or (Path(said[-1]) if said else None)
    if source is None or not source.is_dir():
        raise InvalidRequest(
            f"there is no directory {source}", hint="Name the one it worked in with --workdir."
        )
    with tempfile.TemporaryDirectory() as place:
        archives = FolderArchives(Path(place) / "bench", _tree_at, most=_MOST)
        with archives.bench() as bench:
            files = bench.folder
            try:
                _copy(source, files)
            except (RecursionError, shutil.Error, OSError) as error:
                raise InvalidRequest(
                    f"{source} cannot be copied: {str(error)[:300]}",
                    hint="Directories may be nested too deep; name another one with --workdir.",
                ) from None
            (files / _SHELF).mkdir(parents=True)
            shutil.copyfile(transcript, files / _SHELF / transcript.name)
            bench.log(_entries(lines))
            with bench.pack(Card(sdk_session_id=name, title=_title(lines), has_files=True)) as made:
                yield made


def _copy(source: Path, files: Path) -> None:
    for path in source.iterdir():
        if path.name in _LEFT_OUT or len(str(path)) > LONGEST_PATH:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, files / path.name, symlinks=True, copy_function=_copy_one)
        else:
            _copy_one(str(path), str(files / path.name))


def _copy_one(source: str, target: str) -> None:
    if Path(source).is_symlink() or Path(source).is_file():
        shutil.copy2(source, target, follow_symlinks=False)


def _name_of(transcript: Path) -> str:
    try:
        return str(UUID(transcript.stem))
    except ValueError:
        raise InvalidRequest(
            f"{transcript.name} is not a transcript of Claude Code",
            hint="They are at ~/.claude/projects/DIRECTORY/SESSION.jsonl.",
        ) from None


def _lines(transcript: Path) -> Iterator[dict[str, Any]]:
    with transcript.open("rb") as lines:
        for line in lines:
            try:
                frame = json.loads(line)
            except ValueError:
                continue  # torn, as the program takes it
            if isinstance(frame, dict) and not frame.get("isSidechain"):
                yield frame


def _entries(lines: list[dict[str, Any]]) -> Iterator[Entry]:
    """What people and the agent have said."""
    seq = 0
    for frame in lines:
        kind = {"user": "user.message", "assistant": "agent.message"}.get(frame.get("type", ""))
        texts = _texts(frame.get("message")) if kind and not frame.get("isMeta") else []
        if kind and texts:
            seq += 1
            draft = new_draft(kind, content=[{"type": "text", "text": text} for text in texts])
            yield Entry(seq, draft.id, kind, draft.body, _moment(frame))
    if seq:
        idle = new_draft("session.status_idle", stop_reason={"type": "end_turn"})
        yield Entry(seq + 1, idle.id, idle.type, idle.body, time.time_ns() // 1000)


def _texts(message: Any) -> list[str]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = [block for block in content or [] if isinstance(block, dict)]
    found = [block.get("text") for block in blocks if block.get("type") == "text"]
    return [text.replace("\0", "") for text in found if isinstance(text, str) and text.strip()]


def _moment(frame: dict[str, Any]) -> int:
    try:
        return int(datetime.fromisoformat(frame["timestamp"]).timestamp() * 1_000_000)
    except (KeyError, ValueError, TypeError):
        return 0


def _title(lines: list[dict[str, Any]]) -> str | None:
    first = next((frame for frame in lines if _texts(frame.get("message"))), None)
    return _texts(first["message"])[0][:80] if first else None


def _tree_at(path: Path) -> LocalTree:
    return LocalTree(path, path.parent / "notes", range(0))
