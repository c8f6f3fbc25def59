"""Removes the logs of deleted sessions, a slice at a time: nobody waits for a long one.

Each slice is an operation like any other, in a batch with whatever else is asked for, and asks for
the next one. What a crash or a full disk cuts off goes on when the store is opened again.
"""

from __future__ import annotations

from typing import Final

from roost.stores.sqlite.transaction import Transaction

_SLICE: Final = 500

# One deleted session whose log is still there, and the newest entry that is left of it.
_NEXT = "SELECT num, last FROM graves WHERE swept = 0 LIMIT 1"

# The newest slice of its log.
_SLICE_OF_IT = """
WITH RECURSIVE walk (num, prev, left) AS (
    SELECT num, prev, ?2 FROM entries WHERE num = ?1
    UNION ALL
    SELECT e.num, e.prev, w.left - 1 FROM walk w JOIN entries e ON e.num = w.prev WHERE w.left > 1
)
SELECT num, prev FROM walk
"""
_REMOVE = "DELETE FROM entries WHERE num = ?"

# From here the next slice goes on.
_LEFT = "UPDATE graves SET last = ? WHERE kind = 'session' AND num = ?"

# Slices of what points into the log.
_POINTERS: Final = (
    """
    DELETE FROM marks WHERE session = ?1
    AND seq IN (SELECT seq FROM marks WHERE session = ?1 LIMIT ?2) RETURNING 1
    """,
    """
    DELETE FROM receipts WHERE session = ?1
    AND key IN (SELECT key FROM receipts WHERE session = ?1 LIMIT ?2) RETURNING 1
    """,
)

# Nothing of it is left.
_DONE = "UPDATE graves SET swept = 1 WHERE kind = 'session' AND num = ?"


def sweep(tx: Transaction) -> None:
    """Remove one slice, if there is anything to remove."""
    grave = tx.ask(_NEXT)
    if not grave:
        return
    num, last = grave[0]
    entries = tx.ask(_SLICE_OF_IT, (last, _SLICE))
    if entries:
        tx.run(_REMOVE, [(entry,) for entry, _ in entries])
        tx.ask(_LEFT, (entries[-1][1], num))
    elif not any(tx.ask(pointers, (num, _SLICE)) for pointers in _POINTERS):
        tx.ask(_DONE, (num,))
    tx.later.append(sweep)
