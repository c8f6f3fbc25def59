"""Where a workspace stands between its files and their newest snapshot, as one table.

idle ──a──▶ pending ──b──▶ syncing ──d──▶ idle
  │           │  │            ├─e──▶ retrying ──b──▶ syncing
  c           c  ↺ a          └─f──▶ error ──a──▶ pending
  └──▶ flushing ◀┘            (flushing ends as syncing does)

a  CHANGE   the files may have changed
b  START    it has been quiet for long enough, or changes have waited for long enough
c  FLUSH    now: whoever uses the files goes away
d  DONE     the newest snapshot has everything up to the last START or FLUSH
e  FAIL     the store failed; it is tried again after a pause
f  GIVE_UP  it failed once too often; it is tried again at the next change, flush or start of a server
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from roost.errors import RoostError

BEHIND: Final = (
    "the newest snapshot is older than the session: what it made since was lost with its server"
)
"""What a workspace's row says of files that no machine has any more."""


class SyncState(StrEnum):
    """Where a workspace stands."""

    IDLE = "idle"
    PENDING = "pending"
    SYNCING = "syncing"
    FLUSHING = "flushing"
    RETRYING = "retrying"
    ERROR = "error"


class SyncMove(StrEnum):
    """What can happen to it."""

    CHANGE = "change"
    START = "start"
    FLUSH = "flush"
    DONE = "done"
    FAIL = "fail"
    GIVE_UP = "give_up"


_S, _M = SyncState, SyncMove

TABLE: dict[tuple[SyncState, SyncMove], SyncState] = {
    (_S.IDLE, _M.CHANGE): _S.PENDING,
    (_S.PENDING, _M.CHANGE): _S.PENDING,
    (_S.SYNCING, _M.CHANGE): _S.SYNCING,
    (_S.RETRYING, _M.CHANGE): _S.RETRYING,
    (_S.ERROR, _M.CHANGE): _S.PENDING,
    (_S.PENDING, _M.START): _S.SYNCING,
    (_S.RETRYING, _M.START): _S.SYNCING,
    (_S.IDLE, _M.FLUSH): _S.FLUSHING,
    (_S.PENDING, _M.FLUSH): _S.FLUSHING,
    (_S.SYNCING, _M.FLUSH): _S.FLUSHING,
    (_S.RETRYING, _M.FLUSH): _S.FLUSHING,
    (_S.ERROR, _M.FLUSH): _S.FLUSHING,
    (_S.SYNCING, _M.DONE): _S.IDLE,
    (_S.FLUSHING, _M.DONE): _S.IDLE,
    (_S.SYNCING, _M.FAIL): _S.RETRYING,
    (_S.FLUSHING, _M.FAIL): _S.RETRYING,
    (_S.SYNCING, _M.GIVE_UP): _S.ERROR,
    (_S.FLUSHING, _M.GIVE_UP): _S.ERROR,
}


def step(state: SyncState, move: SyncMove) -> SyncState:
    """The state after the move.

    :raises RoostError: the table has no such move; whoever made it has lost count
    """
    try:
        return TABLE[state, move]
    except KeyError:
        raise RoostError(f"a workspace that is {state} cannot {move}") from None
