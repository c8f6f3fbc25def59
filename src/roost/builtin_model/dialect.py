"""What every API the built-in model speaks has to say about a request and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from roost.builtin_model.script import SpokenTurn, Step

Json = dict[str, Any]
_encode = msgspec.json.encode


class Frame(msgspec.Struct, frozen=True):
    """One server-sent event. `text` ones are the pieces that `chunk_delay` and `cut` count."""

    data: bytes
    text: bool = False


class ModelDialect(Protocol):
    """One API: how its requests are read and its answers are written."""

    def problem(self, body: Json) -> str | None:
        """Why the real API would refuse the request, if it would."""
        ...

    def turns(self, body: Json) -> list[SpokenTurn]:
        """The messages of the request, oldest first."""
        ...

    def whole(self, step: Step, body: Json) -> Json:
        """The whole answer in one response, for a request without `stream`."""
        ...

    def frames(self, step: Step, body: Json) -> Iterator[Frame]:
        """The answer as server-sent events, for a request with `stream`."""
        ...

    def error(self, status: int, kind: str | None, message: str) -> Json:
        """A refusal, in the API's envelope."""
        ...


def frame(event: Json, *, text: bool = False) -> Frame:
    """A server-sent event named by its own type."""
    return Frame(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event)), text)


def tokens(*things: object) -> int:
    """About how many tokens these are: a quarter of their JSON's length, and at least one."""
    return 1 + sum(len(_encode(thing)) for thing in things if thing) // 4
