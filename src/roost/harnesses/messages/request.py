"""The bytes of a request to the model: a head that stays the same, the conversation, and marks for the cache.

Each message is encoded once and joined, so that what was sent before is sent again to the letter: caches and signed
blocks depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from typing import Final

import msgspec

from roost.harnesses.messages.window import ModelWindow
from roost.harnesses.permissions import Json
from roost.ports.harness import SkillNote
from roost.ports.harness_profile import SKILLS

_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_REACH: Final = 15
"""The cache looks about 20 blocks back from a mark for what it knows: after a wave of calls that is not enough."""
_MOST_MARKS: Final = 3  # of 4: the one at the end is at the top level

THOUGHTS: Final = ("thinking", "redacted_thinking")
"""The blocks that a model signs."""

_encode = msgspec.json.encode

_SKILLS: Final = (
    "You have skills: directories with instructions for certain tasks. Before a task that one of them is for, "
    "read its SKILL.md, and what that names in its directory."
)


WORKERS_SKILLS: Final = "skills"
"""Where workers put skills: below the directory that they work in."""


def system_prompt(agent: Json, skills: Sequence[SkillNote], where: str = SKILLS) -> str:
    """What the model is told first: what the agent's definition says, and which skills there are."""
    listed = [f"- {s.name}: {s.description} ({where}/{s.name}/SKILL.md)" for s in skills]
    parts = [agent.get("system") or "", "\n".join([_SKILLS, *listed]) if listed else ""]
    return "\n\n".join(part for part in parts if part)


class RequestHead:
    """What is the same in every request of a conversation."""

    def __init__(
        self, agent: Json, system: str, tools: Sequence[Json], window: ModelWindow
    ) -> None:
        model = agent["model"]
        self.digest = sha256(_encode([model["id"], system, list(tools)])).hexdigest()
        """Of all that what a model has signed depends on, besides the conversation itself."""
        head: Json = {
            "model": model["id"],
            "max_tokens": window.answer,
            "stream": True,
            "cache_control": {"type": "ephemeral"},
        }
        effort = (model.get("effort") or {}).get("type", "high")
        if effort != "high":  # what models do by themselves, also those that know no effort
            head["output_config"] = {"effort": effort}
        if tools:
            head["tools"] = list(tools)
        if system:
            head["system"] = [{"type": "text", "text": system}]
        self._encoded = _encode(head)[:-1]

    def request(self, messages: Sequence[tuple[str, Sequence[bytes]]]) -> bytes:
        """A request with this conversation."""
        marked = _marks([block for _, blocks in messages for block in blocks])
        numbers = count()
        written = [
            b'{"role":"%b","content":[%b]}'
            % (
                role.encode(),
                b",".join(b[:-1] + _MARK if next(numbers) in marked else b for b in blocks),
            )
            for role, blocks in messages
        ]
        return b'%b,"messages":[%b]}' % (self._encoded, b",".join(written))


def _marks(blocks: Sequence[bytes]) -> set[int]:
    """Which blocks to mark, besides the last one: every so many back from the end, or the next one before it that
    can carry a mark.
    """
    marked = set()
    for n in range(1, _MOST_MARKS + 1):
        at = len(blocks) - 1 - _REACH * n
        while at > 0 and is_thought(blocks[at]):  # which cannot carry a mark
            at -= 1
        marked.add(at)
    return {at for at in marked if at > 0}


class _Block(msgspec.Struct):
    type: str


def is_thought(block: bytes) -> bool:
    """Whether it is what a model has thought."""
    return msgspec.json.decode(block, type=_Block).type in THOUGHTS
