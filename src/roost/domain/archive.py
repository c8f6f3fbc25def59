"""What a session looks like in an archive, and what an archive must not be.

An archive is a tar file, compressed with zstd, of these members in this order:

    about.json       what the session is: a `Card`
    log.jsonl        its conversation, an event in each line
    files/…          its files, the agent's transcript among them
    manifest.json    every member before, with its size and hash

Whoever reads one believes nothing of it: it may be damaged, or made to do damage.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from roost.domain.events import PRIVATE, Entry
from roost.domain.snapshot import LONGEST_PATH
from roost.domain.vault import MOST_VAULTS
from roost.errors import BadArchive

FORMAT: Final = 1
CARD, LOG, FILES, MANIFEST = "about.json", "log.jsonl", "files", "manifest.json"
LONGEST_LINE: Final = 32 * 1024 * 1024

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TYPE = re.compile(r"(?:user|agent|session|span|system|roost)\.[a-z_]{1,64}")
_CALL: Final[dict[str, type]] = {"name": str, "input": dict}
_SHAPES: Final[dict[str, dict[str, type]]] = {
    "user.message": {"content": list},
    "system.message": {"content": list},
    "agent.message": {"content": list},
    "agent.tool_use": _CALL,
    "agent.mcp_tool_use": _CALL,
    "agent.custom_tool_use": _CALL,
    "agent.tool_result": {"tool_use_id": str},
    "agent.mcp_tool_result": {"mcp_tool_use_id": str},
    "user.custom_tool_result": {"custom_tool_use_id": str},
    "user.tool_result": {"tool_use_id": str},
    "user.tool_confirmation": {"tool_use_id": str},
    "session.status_idle": {"stop_reason": dict},
}


class Card(msgspec.Struct, kw_only=True):
    """What a session is, for the server that takes it in. The agent and the place are only names there.

    `vaults` is how many it had: they are another server's, or another key's, and do not come along.
    """

    format: int = FORMAT
    session_id: str = ""
    title: str | None = None
    metadata: dict[str, str] = {}
    harness: str = "claude"
    agent_id: str | None = None
    environment_id: str | None = None
    trust_level: str = "sandboxed"
    mount_scope: str = "workspace"
    sdk_session_id: str | None = None
    origin: str = ""
    thread_id: str = ""
    has_files: bool = False
    vaults: Annotated[int, msgspec.Meta(ge=0, le=MOST_VAULTS)] = 0


class ArchiveMember(msgspec.Struct, frozen=True):
    """What a manifest says of a member. `sha256` is of a file's content, or of where a link leads."""

    name: str
    size: int
    sha256: str


def card_of(data: bytes) -> Card:
    """What an archive says the session is. :raises BadArchive:"""
    said = decoded(data, dict[str, Any], CARD)
    if not isinstance(said.get("format"), int) or said["format"] < 1:
        raise BadArchive(f"{CARD}: this is not a session")
    if said["format"] > FORMAT:
        raise BadArchive(
            f"the archive has format {said['format']}, and this server knows {FORMAT}",
            hint="It was made by a newer version of Roost: import it with that, or a later one.",
        )
    card: Card = decoded(data, Card, CARD)
    for name in ("origin", "thread_id", "session_id"):
        if getattr(card, name) and not _ID.fullmatch(getattr(card, name)):
            raise BadArchive(f"{CARD}: {name} is not an id")
    if card.sdk_session_id is not None and not _is_uuid(card.sdk_session_id):
        raise BadArchive(f"{CARD}: sdk_session_id is not a UUID")
    return card


def entry_of(line: bytes, seq: int, latest: int, now: int) -> Entry:
    """A line of a log, at its place; never before the one before it, nor in the future.

    :raises BadArchive: it is nothing that a log has
    """
    event = decoded(line, dict[str, Any], f"{LOG}:{seq}")
    kind, id, at = event.pop("type", None), event.pop("id", None), event.pop("at", None)
    sound = (
        isinstance(kind, str)
        and _TYPE.fullmatch(kind)
        and kind not in PRIVATE
        and isinstance(id, str)
        and _ID.fullmatch(id)
        and isinstance(at, int)
        and b"\\u0000" not in line
        and all(isinstance(event.get(name), want) for name, want in _SHAPES.get(kind, {}).items())
        and _is_content(event.get("content") or [])
        and isinstance(event.get("stop_reason", {}).get("type", ""), str)
        and ("stop_reason" not in event or "type" in event["stop_reason"])
    )
    if not sound:
        raise BadArchive(f"{LOG}: line {seq} is not an event")
    moment = min(max(latest, at), now)
    return Entry(seq, id, kind, msgspec.json.encode(event), moment)


def line_of(entry: Entry) -> bytes:
    """The line of an archive that `entry_of` reads."""
    head = {"type": entry.type, "id": entry.id, "at": entry.at}
    return msgspec.json.encode({**entry.fields, **head}) + b"\n"


def check_name(name: str) -> None:
    """Whether a member may be called that. :raises BadArchive: it would lead elsewhere"""
    if len(name.encode(errors="surrogateescape")) > LONGEST_PATH + len(f"{FILES}/"):
        raise BadArchive(
            f"the archive has a member with a path of more than {LONGEST_PATH} bytes: {name[:50]!r}",
            hint="Directories may be nested as deep as such a path goes; archive fewer levels.",
        )
    parts = name.split("/")
    if "\0" in name or parts[0] != FILES or {"", ".", ".."} & set(parts):
        raise BadArchive(f"the archive has a member {name[:200]!r}")


def decoded(data: bytes, kind: type[Any], where: str) -> Any:
    """JSON of this kind. :raises BadArchive:"""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadArchive(f"{where}: {error}") from None


def _is_content(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(block, dict)
        and isinstance(block.get("type"), str)
        and (block["type"] != "text" or isinstance(block.get("text"), str))
        for block in content
    )


def _is_uuid(word: str) -> bool:
    try:
        return str(UUID(word)) == word
    except ValueError:
        return False
