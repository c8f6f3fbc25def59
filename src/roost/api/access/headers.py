"""The headers of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_CODE: Final = "latin-1"


class RequestHeaders(Mapping[str, str]):
    """Headers by lower-case name; one that is repeated is a list with commas.

    They stay bytes, in `raw`, until one is asked for: of most requests, nobody reads most of them.
    """

    __slots__ = ("raw",)

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.raw: dict[bytes, bytes] = dict(pairs)
        if len(self.raw) < len(pairs):
            every: dict[bytes, list[bytes]] = {}
            for name, value in pairs:
                every.setdefault(name, []).append(value)
            self.raw = {name: b",".join(values) for name, values in every.items()}

    def __getitem__(self, name: str) -> str:
        return self.raw[name.encode(_CODE)].decode(_CODE)

    def __iter__(self) -> Iterator[str]:
        return (name.decode(_CODE) for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)
