"""A conversation as one file, so that it goes on in another container: its state, and the program's record of it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any, Final

from roost.guest.session_store import SessionState, SessionStore, default_path, records

_STATE: Final = "state.json"
_LARGEST: Final = 512 * 1024 * 1024


def pack(path: str) -> dict[str, Any]:
    """Write the conversation into this file; `size` is 0 if there is none. A later one has a higher `version`."""
    state = SessionStore().load()
    made = Path(path)
    made.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if state is None:
        made.write_bytes(b"")
        return {"size": 0, "version": 0}
    with tarfile.open(made, "w:gz") as archive:
        archive.add(default_path(), _STATE)
        for record in _records(state):
            archive.add(record, f"projects/{record.parent.name}/{record.name}")
    return {"size": made.stat().st_size, "version": state.conversation_turns}


def unpack(path: str) -> dict[str, Any]:
    """Take over the conversation in this file, unless there is one already."""
    store = SessionStore()
    if store.exists():
        return {"taken": False}
    with tarfile.open(path, "r:gz") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        if sum(member.size for member in members) > _LARGEST:
            raise ValueError("the conversation is too large")
        # The state comes last: if this is cut off, the conversation is taken over again.
        for member in sorted(members, key=lambda member: member.name == _STATE):
            _put(member.name, archive.extractfile(member) or io.BytesIO())
    return {"taken": True}


def _records(state: SessionState) -> list[Path]:
    return list(records().glob(f"*/{state.session_id}.jsonl"))


def _put(name: str, content: Any) -> None:
    parts = Path(name).parts
    if name == _STATE:
        target = default_path()
    elif len(parts) == 3 and parts[0] == "projects" and ".." not in parts:
        target = records() / parts[1] / parts[2]
    else:
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = target.with_name(f"{target.name}.tmp")
    made.write_bytes(content.read())
    made.replace(target)
