"""A conversation that fills the model's window is summed up by the model, and goes on with the summary.

It is done by asking for it, which works with every server of the API. The summary is an entry of the log
(`roost.context`), so a conversation that is opened again begins with it. What clients see stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.domain.events import Draft
from roost.harnesses.messages.journal import CONTEXT, Journal
from roost.harnesses.messages_api import ModelAnswer
from roost.harnesses.permissions import Json
from roost.harnesses.retries import ModelFailure
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit

FULL: Final = 150_000
"""Tokens of a conversation that is to be summed up. The smallest window of current models has 200,000."""

_ASK: Final = """\
Your context window is nearly full. Write a summary that will replace everything above, for yourself to go on with. \
Include: what the user asked for and every instruction that still holds; what was done, with the names of files, \
commands and results that matter; what was found out; what is unfinished, and the next steps. Be exact and complete; \
call no tools. Reply with the summary only."""
_BEFORE: Final = "[The conversation so far was replaced by this summary of yours:]"
_AFTER: Final = "[End of the summary. Go on from there.]"

Blocks = list[bytes]


class Compaction:
    """Sums up a conversation in which no call is open. What the user has said last, and the model has not
    answered, stays as it is.
    """

    def __init__(self, journal: Journal) -> None:
        messages = journal.messages()
        self._kept: Blocks = []
        if messages and messages[-1][0] == "user" and not any(map(_is_result, messages[-1][1])):
            self._kept = messages.pop()[1]
        ask = msgspec.json.encode({"type": "text", "text": _ASK})
        if messages and messages[-1][0] == "user":
            role, blocks = messages.pop()
            messages.append((role, [*blocks, ask]))
        else:
            messages.append(("user", [ask]))
        self.messages: Sequence[tuple[str, Blocks]] = messages

    @property
    def is_useful(self) -> bool:
        """Whether there is something to sum up besides what stays."""
        return len(self.messages) > 1

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


def _is_result(block: bytes) -> bool:
    return block.startswith(b'{"type":"tool_result"')
