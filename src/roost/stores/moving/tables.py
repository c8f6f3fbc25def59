"""What is moved: the tables of the new database, asked of itself, and where each comes from in the old one.

Columns and keys are not listed here: a table that both databases have, with the same columns, moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from roost.stores.postgres.driver import Connection

_NOT_THERE: Final = {"migrations", "floors", "commits", "nodes", "shared", "moves"}
"""Of PostgreSQL's tables, those that are about its servers and not about what they keep."""

_NOT_HERE: Final = {"migrations", "pulse", "heads", "sqlite_sequence"}
"""Of SQLite's. A session's head is a row of its own there."""

_FROM: Final = {"sessions": "sessions JOIN heads ON session = num"}
_ALSO: Final = {"sessions": ("heads", {"session"})}
"""What `_FROM` joins, and which of its columns are the join's only."""
_PARTS: Final = {"entries": 1}
"""How many columns of the key say to which part a row belongs: each session's log is proved by itself."""

_TABLES = """
SELECT c.table_name, c.column_name, c.data_type = 'boolean', c.is_identity = 'YES',
       array_position(i.indkey::int2[], c.ordinal_position::int2)
FROM information_schema.columns c
JOIN pg_class r ON r.oid = to_regclass(quote_ident(c.table_name)) AND r.relkind = 'r'
  AND r.relpersistence = 'p'  -- what a crash may empty is a hint, and not moved
LEFT JOIN pg_index i ON i.indrelid = r.oid AND i.indisprimary
WHERE c.table_schema = current_schema() ORDER BY c.table_name, c.ordinal_position
"""

Row = tuple[Any, ...]


class Table(NamedTuple):
    """One table of the new database."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    booleans: tuple[int, ...]
    identity: str | None

    @property
    def source(self) -> str:
        """Where its rows are in the old database."""
        return _FROM.get(self.name, self.name)

    @property
    def parts(self) -> int:
        """How many columns of the key name the part that is proved by itself; 0: the whole table."""
        return _PARTS.get(self.name, 0)

    def of(self, columns: set[str]) -> Table:
        """The same with these columns only."""
        kept = [n for n, column in enumerate(self.columns) if column in columns]
        return self._replace(
            columns=tuple(self.columns[n] for n in kept),
            booleans=tuple(place for place, n in enumerate(kept) if n in self.booleans),
        )

    def key_of(self, row: Row) -> Row:
        """The values by which a row is found again."""
        return tuple(row[self.columns.index(column)] for column in self.key)

    def typed(self, row: Row) -> Row:
        """A row of the old database as the new one has it: SQLite keeps no booleans."""
        if not self.booleans:
            return row
        return tuple(bool(v) if n in self.booleans else v for n, v in enumerate(row))


async def tables_of(connection: Connection) -> list[Table]:
    """Every table that is moved."""
    found: dict[str, list[Any]] = defaultdict(list)
    for name, *column in await connection.fetch(_TABLES):
        if name not in _NOT_THERE:
            found[name].append(column)
    return [_table(name, columns) for name, columns in sorted(found.items())]


def _table(name: str, columns: list[Any]) -> Table:
    key = sorted((place, column) for column, _, _, place in columns if place is not None)
    return Table(
        name=name,
        columns=tuple(column for column, *_ in columns),
        key=tuple(column for _, column in key),
        booleans=tuple(n for n, (_, boolean, _, _) in enumerate(columns) if boolean),
        identity=next((column for column, _, identity, _ in columns if identity), None),
    )


def common(tables: Iterable[Table], here: Mapping[str, set[str]]) -> list[Table]:
    """The tables with those columns that the old database has; the rest keep their defaults.

    Nothing is left behind: if this fails, SQLite has a table or a column that PostgreSQL lacks.
    """
    both = []
    for table in tables:
        joined, left_out = _ALSO.get(table.name, ("", set()))
        old = here[table.name] | (here.get(joined, set()) - left_out)
        assert old <= set(table.columns), f"{table.name}: {old - set(table.columns)}"
        both.append(table.of(old))
    assert here.keys() - _NOT_HERE == {table.name for table in both}
    return both
