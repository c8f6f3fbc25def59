"""The move: copied in pieces, each in one commit with the note that it is there; then all of it is proved.

Killed anywhere, the next run goes on after the last piece that was committed. While a move is not
finished no server starts on the new database. If a server has worked with the old one in between,
what was copied is not the truth any more, and the move begins anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from roost.errors import StartupError
from roost.stores.moving import source, target
from roost.stores.moving.progress import MoveProgress, note
from roost.stores.moving.proof import Prover, differences
from roost.stores.moving.source import SqliteSource
from roost.stores.moving.tables import Row, common
from roost.stores.moving.target import PostgresTarget

_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 4 * 1024 * 1024
_OFTEN: Final = 5000  # rows between two words about the check


async def move(path: Path, url: str) -> AsyncGenerator[MoveProgress]:
    """Everything in this SQLite file to that PostgreSQL database; says how far it is.

    :raises StartupError: it is refused, or was cut off; the hint says what to do
    """
    with source.opened(path) as old:
        async with target.opened(url) as new:
            new.tables = common(new.tables, old.tables)
            await new.check_alone()
            counts = old.counts(new.tables)
            begun = await _begun(new, old.fingerprint(counts))
            if begun is None:
                yield note("this database was moved before, and is all there")
                return
            async for progress in _copy(old, new, counts, *begun):
                yield progress
            async for progress in _check(old, new, counts):
                yield progress
            await new.check_alone()
            await new.finish()
            yield note(_summary(counts))


async def _begun(new: PostgresTarget, fingerprint: str) -> tuple[str, list[Any]] | None:
    """Where to go on: the table, and the last key of it that is there. None: there is nothing to do."""
    found = await new.found()
    if found is None:
        await _check_empty(new)
        await new.begin(fingerprint)
        return "", []
    known, finished, table, upto = found
    if finished and known == fingerprint:
        return None
    if finished:
        raise StartupError(
            "another database was moved into the target before, or this one at an earlier time",
            hint="Move into an empty database: createdb NAME",
        )
    if known != fingerprint:
        await new.begin(fingerprint)
        return "", []
    return table, upto


async def _check_empty(new: PostgresTarget) -> None:
    if filled := await new.filled():
        raise StartupError(
            f"the target database has data of its own, in: {', '.join(filled)}",
            hint="Move into an empty database: createdb NAME",
        )


async def _copy(
    old: SqliteSource, new: PostgresTarget, counts: dict[str, int], last: str, upto: list[Any]
) -> AsyncGenerator[MoveProgress]:
    for table in new.tables:
        if table.name < last:
            continue
        after = upto if table.name == last else []
        total, done = counts[table.name], 0
        if after:
            done = total - sum(1 for _ in old.rows(table, after))
            yield note(f"going on with {table.name} after {done:,} of {total:,}")
        for piece in _pieces(old.rows(table, after)):
            await new.add(table, piece)
            done += len(piece)
            yield MoveProgress("copy", table.name, done, total)
        await new.number_on(table, old.last_number(table))


def _pieces(rows: Iterator[Row]) -> Iterator[Sequence[Row]]:
    """Few enough rows to hold, many enough for a commit."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes | str))
        if len(piece) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


async def _check(
    old: SqliteSource, new: PostgresTarget, counts: dict[str, int]
) -> AsyncGenerator[MoveProgress]:
    """Every row again, from both."""
    wrong: list[str] = []
    for table in new.tables:
        here, there, seen = Prover(table), Prover(table), 0
        for row in old.rows(table):
            here.show(row)
        async for row in new.rows(table):
            there.show(row)
            seen += 1
            if seen % _OFTEN == 0:
                yield MoveProgress("check", table.name, seen, counts[table.name])
        wrong += differences(table, here.proofs(), there.proofs())
        yield MoveProgress("check", table.name, seen, counts[table.name])
    if wrong:
        await new.spoil()
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise StartupError(
            f"the copy is not the same: {wrong[0]}{more}",
            hint="Nothing is lost: the old database is as it was. Give the same command again.",
        )


def _summary(counts: dict[str, int]) -> str:
    logs = f"{counts['sessions']:,} sessions with {counts['entries']:,} entries"
    return f"moved and checked: {logs}, {sum(counts.values()):,} rows in all"
