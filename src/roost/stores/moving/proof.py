"""That two tables hold the same: the number of rows and a hash of them, for each part by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from roost.stores.moving.tables import Row, Table

_encode = msgspec.msgpack.Encoder().encode


class Proof(NamedTuple):
    """Of one part of a table: a session's log, or all of it."""

    part: tuple[Any, ...]
    rows: int
    hash: str


class Prover:
    """Is shown rows in the order of their keys."""

    def __init__(self, table: Table) -> None:
        self._places = [table.columns.index(column) for column in table.key[: table.parts]]
        self._proofs: list[Proof] = []
        self._part: tuple[Any, ...] | None = None
        self._rows = 0
        self._hash = hashlib.sha256()

    def show(self, row: Row) -> None:
        """Take the next row into account."""
        part = tuple(row[place] for place in self._places)
        if part != self._part:
            self._close()
            self._part, self._rows, self._hash = part, 0, hashlib.sha256()
        self._rows += 1
        self._hash.update(_encode(row))

    def proofs(self) -> list[Proof]:
        """Of all that was shown. The last thing to ask for."""
        self._close()
        return self._proofs

    def _close(self) -> None:
        if self._part is not None:
            self._proofs.append(Proof(self._part, self._rows, self._hash.hexdigest()))


def differences(table: Table, here: list[Proof], there: list[Proof]) -> Iterator[str]:
    """What is not the same, in words; nothing if all is."""
    old, new = ({proof.part: proof for proof in proofs} for proofs in (here, there))
    for part in sorted(old.keys() | new.keys()):
        if old.get(part) == new.get(part):
            continue
        counts = [found.rows if (found := side.get(part)) else 0 for side in (old, new)]
        which = f" of session number {part[0]}" if part else ""
        yield f"{table.name}{which}: {counts[0]} rows in the old database, {counts[1]} in the new"
