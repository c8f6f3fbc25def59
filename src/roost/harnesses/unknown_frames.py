"""What an agent's program says that nobody here understands.

A newer program may say things this code has not heard of. They are not for us to judge, so they go into the log
as they are, under a type of their own. But they come out of a sandbox, which can print without end: of
each kind only the first ones are shown, large ones are cut, and the rest is counted and told once per turn.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from roost.harnesses.json_lines import Json
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit

TYPE: Final = "roost.agent_frame"
_OF_A_KIND = 3  # shown of each kind, for as long as one process lives
_KINDS = 20
_LONGEST_KIND = 80
_LARGEST = 8 * 1024  # bytes of a frame that is shown whole
_OTHERS = "others"


class UnknownFrames:
    """The frames of one process of a `harness`. `counts` has all of them, by kind."""

    def __init__(self, harness: str) -> None:
        self._harness = harness
        self.counts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def pass_on(self, frame: Json) -> list[Emit]:
        """The frame as an event; nothing if it is one too many, which is counted."""
        kind = self._kind(frame)
        self.counts[kind] += 1
        if kind == _OTHERS or self.counts[kind] > _OF_A_KIND:
            self._left_out[kind] += 1
            return []
        return [self._aside(kind=kind, **_shown(frame))]

    def told(self) -> list[Emit]:
        """What was left out since this was last asked, if anything was."""
        left_out, self._left_out = dict(self._left_out), Counter()
        return [self._aside(left_out=left_out)] if left_out else []

    def _aside(self, **fields: object) -> Emit:
        return Emit([new_draft(TYPE, harness=self._harness, **fields)], aside=True)

    def _kind(self, frame: Json) -> str:
        subtype = frame.get("subtype")
        named = f"{frame['type']} {subtype}" if isinstance(subtype, str) else str(frame["type"])
        kind = named.strip()[:_LONGEST_KIND]
        known = kind in self.counts or len(self.counts) < _KINDS
        return kind if known else _OTHERS


def _shown(frame: Json) -> Json:
    text = msgspec.json.encode(frame)
    if len(text) <= _LARGEST:
        return {"frame": frame}
    return {"excerpt": text[:_LARGEST].decode(errors="ignore"), "bytes": len(text)}
