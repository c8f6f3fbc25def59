"""Parts that answers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from roost.domain.events import Micros, iso

_encode = msgspec.json.Encoder().encode


def reply(value: object, status: int = 200) -> Response:
    """A response with this value as JSON."""
    return Response(_encode(value), status, media_type="application/json")


WHOLE_ANSWER: Final = "roost.whole_answer"
"""The extension of ASGI by which our server takes an answer at once, and not message by message."""

TakeWhole = Callable[[Scope, bytes, bytes], bool]
"""Writes the headers of an answer with status 200, which end with an empty line, and its body, for the request
of this scope. False: it has to come as messages, and nothing was written.
"""


class JsonBytes:
    """A response with JSON that is encoded already, sent with as little work as possible."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, as ASGI asks for it."""
        length = b"content-length", b"%d" % len(self.body)
        headers = [length, (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def times(created: Micros, updated: Micros, archived: Micros | None) -> dict[str, Any]:
    """The moments in the life of a record or a session, as clients see them."""
    return {
        "created_at": iso(created),
        "updated_at": iso(updated),
        "archived_at": None if archived is None else iso(archived),
    }
