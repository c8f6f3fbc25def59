"""A model that takes back only what it has said, to the letter, as the real ones do with what they sign."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from roost.builtin_model.app import SeenRequest
from roost.builtin_model.script import Fault
from roost.harnesses.messages_api import ModelAnswer
from roost.testing.scripted_model import ScriptedModel


class StrictModel(ScriptedModel):
    """Refuses a request in which something was changed that comes before an answer, or an answer itself.

    `refusals` has what was wrong. Each answer is kept by all that it was given to. One that `minds_thoughts_alone`
    looks at answers with thoughts in them only, which are signed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refusals: list[str] = []
        self.minds_thoughts_alone = False
        self._given: dict[str, list[str]] = {}
        self._asked: str | None = None

    def forget(self) -> None:
        """Take nothing back that was said until now."""
        self._given.clear()

    def _minds(self, message: dict[str, Any]) -> bool:
        thoughts = any(block["type"] == "thinking" for block in message["content"])
        return thoughts or not self.minds_thoughts_alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""

        async def look(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")
            await send(message)

        await super().__call__(scope, receive, look)
        if scope["path"] == "/v1/messages" and body.startswith(b"event: message_start"):
            answer = ModelAnswer()
            for line in body.splitlines():
                if line.startswith(b"data: "):
                    answer.add(json.loads(line[6:]))
            asked, said = self._asked or "", [part.block() for part in answer.content]
            self._given.setdefault(asked, []).append(_plain(said))

    def seen(self, request: SeenRequest) -> Fault | None:
        if request.path != "/v1/messages":
            return super().seen(request)
        body = request.body
        self._asked = _asked(body, len(body["messages"]))
        for index, message in enumerate(body["messages"]):
            if message["role"] == "assistant" and self._minds(message):
                given = self._given.get(_asked(body, index), [])
                if _plain(message["content"]) not in given:
                    what = "was changed" if given else "follows what it was not given to"
                    self.refusals.append(
                        f"messages.{index}: this answer with its thinking {what}: {message}"
                    )
                    return Fault(400, message=self.refusals[-1][:500])
        return super().seen(request)


def _asked(body: dict[str, Any], length: int) -> str:
    """All that an answer depends on."""
    return _plain([body.get("system"), body.get("tools"), body["messages"][:length]])


def _plain(value: Any) -> str:
    return json.dumps(_unmarked(value), sort_keys=True)


def _unmarked(value: Any) -> Any:
    """Without the marks for the cache, which may move."""
    if isinstance(value, dict):
        return {key: _unmarked(each) for key, each in value.items() if key != "cache_control"}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value
