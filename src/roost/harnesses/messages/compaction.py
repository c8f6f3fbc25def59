"""A conversation that fills the model's window is summed up by the model, and goes on with the summary.

It is done by asking for it, which works with every server of the API. The summary is an entry of the log
(`roost.context`), so a conversation that is opened again begins with it. What clients see stays as it is.

A conversation that has outgrown the window cannot be sent any more, with whatever question. Then its end is told as
plain text, as much of it as surely fits: large results of tools cannot keep a session from going on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.domain.events import Draft
from roost.harnesses.messages.journal import CONTEXT, MOST_COUNTED, Journal
from roost.harnesses.messages.window import ModelWindow
from roost.harnesses.messages_api import ModelAnswer
from roost.harnesses.permissions import Json
from roost.harnesses.retries import ModelFailure
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit

_SURELY: Final = 2
"""Bytes that a token surely has, in nearly every text."""

_ASK: Final = """\
Your context window is nearly full. Write a summary that will replace everything above, for yourself to go on with. \
Include: what the user asked for and every instruction that still holds; what was done, with the names of files, \
commands and results that matter; what was found out; what is unfinished, and the next steps. Be exact and complete; \
call no tools. Reply with the summary only."""
_END_OF_IT: Final = "[The conversation has outgrown your context window. This is its end, as text:]"
_NO_ROOM: Final = "[The rest is left out: the model has no room for it.]"
_BEFORE: Final = "[The conversation so far was replaced by this summary of yours:]"
_AFTER: Final = "[End of the summary. Go on from there.]"

Blocks = list[bytes]


class Compaction:
    """Sums up a conversation in which no call is open. What the user has said last, and the model has not
    answered, stays as it is, or what fits of it.
    """

    def __init__(self, journal: Journal, window: ModelWindow) -> None:
        messages = journal.messages()
        self._kept: Blocks = []
        if messages and messages[-1][0] == "user" and not any(map(_is_result, messages[-1][1])):
            self._kept = messages.pop()[1]
        ask = _text(_ASK)
        if journal.tokens > window.most:
            # Refused once more, it was not little enough.
            room = window.most * _SURELY >> journal.refusals
            told = _told([*messages, ("user", self._kept)])[-room:]
            messages = [("user", [_text(f"{_END_OF_IT}\n\n{told}")])]
            self._kept = _fitted(self._kept, room // 2)
        if messages and messages[-1][0] == "user":
            role, blocks = messages.pop()
            messages.append((role, [*blocks, ask]))
        else:
            messages.append(("user", [ask]))
        self.messages: Sequence[tuple[str, Blocks]] = messages

    @property
    def is_useful(self) -> bool:
        """Whether there is something to sum up besides what stays."""
        return any(len(blocks) > 1 for _, blocks in self.messages) or len(self.messages) > 1

    def finish(self, answer: ModelAnswer, end: Draft) -> Emit:
        """The entries of the summary. :raises ModelFailure: there is none"""
        text = "".join(part.text for part in answer.parts if part.kind == "text").strip()
        if not answer.complete:
            # Interrupted: it is asked for again when there is something to answer.
            return Emit([end], spent=answer.usage)
        if not text:
            raise ModelFailure("The model has not summed the conversation up.")
        said: Json = {"type": "text", "text": f"{_BEFORE}\n\n{text}\n\n{_AFTER}"}
        kept = [msgspec.json.decode(block) for block in self._kept]
        return Emit(
            [
                new_draft(CONTEXT, content=[said, *kept]),
                new_draft("agent.thread_context_compacted"),
                end,
            ],
            spent=answer.usage,
        )


def _text(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": text})


def _told(messages: Sequence[tuple[str, Blocks]]) -> str:
    """A conversation as text."""
    return "\n\n".join(
        f"{role}: {_words(msgspec.json.decode(block))}"
        for role, blocks in messages
        for block in blocks
    )


def _words(block: Json) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"[calls {block['name']}: {msgspec.json.encode(block['input']).decode()}]"
        case "tool_result":
            return f"[result: {' '.join(map(_words, block['content']))}]"
        case kind:
            return f"[{kind}]"


def _fitted(blocks: Blocks, room: int) -> Blocks:
    """As much of them as there is room for."""
    kept: Blocks = []
    for block in blocks:
        said = msgspec.json.decode(block)
        is_text = said["type"] == "text"
        size = len(block) if is_text else min(len(block), MOST_COUNTED)
        if size <= room:
            kept.append(block)
        else:
            begun = said["text"][: max(room, 0) // 4] if is_text else ""
            kept.append(_text(f"{begun}\n{_NO_ROOM}".strip()))
        room -= size
    return kept


def _is_result(block: bytes) -> bool:
    return block.startswith(b'{"type":"tool_result"')
