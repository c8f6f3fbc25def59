"""Removes the logs of deleted sessions, a slice at a time: nobody waits for a long one.

Each slice is an operation like any other, in a batch with whatever else is asked for, and asks for
the next one. What a crash or a full disk cuts off goes on when the store is opened again.
"""

from __future__ import annotations

from typing import Final

from roost.stores.sqlite.transaction import Transaction

_SLICE: Final = 500

# One deleted session whose log is still there.
_NEXT = "SELECT num FROM graves WHERE swept = 0 LIMIT 1"

# Slices of its log, then of what points into it.
_SLICES: Final = (
    """
    DELETE FROM entries WHERE session = ?1
    AND seq IN (SELECT seq FROM entries WHERE session = ?1 ORDER BY seq LIMIT ?2) RETURNING 1
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
    [(num,)] = grave
    if not any(tx.ask(a_slice, (num, _SLICE)) for a_slice in _SLICES):
        tx.ask(_DONE, (num,))
    tx.later.append(sweep)
