"""What runs inside a sandbox or a pool's container, and imports nothing of Roost but itself.

In a pool's container this is a package of its own: `run_init` and `run_chat` are an agent that is talked to by running
code (see `docs/pools.md`). It needs the standard library, and `claude-agent-sdk` for a turn. `interpreter`, `tools`,
`fetch` and `forward` are programs that a server shows in its own sandboxes.
"""

from roost.guest.carry import pack, unpack
from roost.guest.confirms import confirm
from roost.guest.events import (
    EventType,
    emit_confirm_request,
    emit_device_code,
    emit_done,
    emit_error,
    emit_event,
    emit_progress,
    emit_text,
    emit_tool_end,
    emit_tool_start,
)
from roost.guest.runner import clear, get_status, run_chat, run_init
from roost.guest.session_store import SessionState, SessionStore

__all__ = [
    "EventType",
    "SessionState",
    "SessionStore",
    "clear",
    "confirm",
    "emit_confirm_request",
    "emit_device_code",
    "emit_done",
    "emit_error",
    "emit_event",
    "emit_progress",
    "emit_text",
    "emit_tool_end",
    "emit_tool_start",
    "get_status",
    "pack",
    "run_chat",
    "run_init",
    "unpack",
]
