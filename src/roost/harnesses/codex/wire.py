"""What travels between us and Codex's app server: JSON-RPC without its version, one message per line.

Fields that nobody here names are ignored, so that a newer Codex may add some. What a message has is data out of
a sandbox: `text_in` and `object_in` give a value of the type that is expected, whatever is there.
"""

from __future__ import annotations

from roost.harnesses.json_lines import Json, JsonLines, decoded

_NOT_SERVED = -32601


class AppServerPipe(JsonLines):
    """An app server that runs (`JsonLines`)."""

    _requests = 0

    def frame_of(self, line: bytes) -> Json | str:
        frame = decoded(line)
        if frame is None or not (isinstance(frame.get("method"), str) or "id" in frame):
            return "not a message"
        return frame

    async def request(self, method: str, **params: object) -> int:
        """Ask for something; gives the id that the response will have."""
        self._requests += 1
        await self.send({"id": self._requests, "method": method, "params": params})
        return self._requests

    async def notify(self, method: str) -> None:
        """Say something that has no response."""
        await self.send({"method": method})

    async def respond(self, request_id: object, result: Json) -> None:
        """Answer what Codex has asked."""
        await self.send({"id": request_id, "result": result})

    async def refuse(self, request_id: object, why: str) -> None:
        """Tell Codex that what it has asked for is not to be had."""
        await self.send({"id": request_id, "error": {"code": _NOT_SERVED, "message": why}})


def object_in(source: Json, *path: str) -> Json:
    """The object at this path; an empty one if there is none."""
    for name in path:
        found = source.get(name)
        source = found if isinstance(found, dict) else {}
    return source


def text_in(source: Json, name: str) -> str:
    """The text with this name; an empty one if there is none."""
    found = source.get(name)
    return found if isinstance(found, str) else ""
