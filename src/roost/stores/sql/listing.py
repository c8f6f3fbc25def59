"""What listings have in common: conditions put together from parts, and going on after an id."""

from __future__ import annotations

from collections.abc import Sequence

from roost.domain.rewinds import Stretch
from roost.errors import InvalidRequest
from roost.stores.sql.rows import Row

Value = str | int | None

# Where a thing stands in its listing; also one that was deleted since the last page was read.
POSITION = """
SELECT num FROM sessions WHERE CAST(?1 AS TEXT) = 'session' AND tenant = ?2 AND id = ?3
UNION ALL SELECT num FROM records WHERE kind = ?1 AND tenant = ?2 AND id = ?3
UNION ALL SELECT num FROM graves WHERE kind = ?1 AND tenant = ?2 AND id = ?3
"""


def position(found: Sequence[Row], kind: str, thing_id: str) -> int:
    """The thing's number, from the answer to `POSITION`.

    :raises InvalidRequest: there never was such a thing
    """
    if not found:
        raise InvalidRequest(f"a listing cannot go on after {thing_id!r}: there is no such {kind}")
    return int(found[0][0])


def outside(column: str, stretches: Sequence[Stretch]) -> str:
    """A condition to be added: in none of these."""
    return "".join(f" AND {column} NOT BETWEEN {a:d} AND {b:d}" for a, b in stretches)


class Filter:
    """Conditions that all must hold. One whose value is None asks for nothing."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._conditions: list[str] = []

    @property
    def text(self) -> str:
        """The conditions as SQL."""
        return " AND ".join(self._conditions)

    def equal(self, column: str, value: Value) -> Filter:
        """Only rows that have exactly this value."""
        return self._add(f"{column} = ?", value)

    def at_least(self, column: str, value: Value) -> Filter:
        """This value or a greater one."""
        return self._add(f"{column} >= ?", value)

    def at_most(self, column: str, value: Value) -> Filter:
        """This value or a smaller one."""
        return self._add(f"{column} <= ?", value)

    def beyond(self, column: str, value: Value, descending: bool) -> Filter:
        """Further on than this value, in the direction the listing goes."""
        return self._add(f"{column} {'<' if descending else '>'} ?", value)

    def among(self, column: str, values: Sequence[str]) -> Filter:
        """One of these; no values ask for nothing."""
        if values:
            self._conditions.append(f"{column} IN ({', '.join('?' * len(values))})")
            self.values += values
        return self

    def either(self, condition: str, values: Sequence[Value]) -> Filter:
        """A condition of several parts."""
        self._conditions.append(f"({condition})")
        self.values += values
        return self

    def absent(self, column: str) -> Filter:
        """No value at all."""
        self._conditions.append(f"{column} IS NULL")
        return self

    def _add(self, condition: str, value: Value) -> Filter:
        if value is not None:
            self._conditions.append(condition)
            self.values.append(value)
        return self
