"""Rewinds: which part of a log is the conversation, and which turns it has.

A rewind takes nothing out of a log: it is an entry that says where the conversation goes on from. So a log
is a tree whose branches lie one after the other, and the conversation is the branch that its end is on:

    1 ── 2 ── 3 ── 4        stretches(…, 4) = 1…4
         └─────────── 5 ── 6     a rewind at 5, to 2: stretches(…, 6) = 1…2, 5…6
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from roost.domain.events import Entry

TELLING: Final = (
    "user.message",
    "system.message",
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
    "span.model_request_start",
    "session.status_idle",
)
"""The types of entries from which turns can be told."""

_INPUTS = TELLING[:6]
_ANSWERS = TELLING[3:6]

Stretch = tuple[int, int]
"""From one seq to another, both included."""


class Rewind(msgspec.Struct, frozen=True, array_like=True):
    """The entry at `at` says: what comes next follows after `to`.

    `mark` is that of the snapshot the files are restored from, 0 if they stay as they are. `was` is what
    the agent's own program called the conversation up to here.
    """

    at: int
    to: int
    mark: int = 0
    was: str | None = None


class ConversationTurn(msgspec.Struct, frozen=True):
    """The `number`th turn of a conversation: all that happened from `first` to `last`.

    `rests`: the session rested then. If not, it had the next messages already.
    """

    number: int
    first: int
    last: int
    rests: bool


def stretches(rewinds: Sequence[Rewind], head: int) -> list[Stretch]:
    """The parts of a log that are the conversation which its entry `head` belongs to, in order."""
    found: list[Stretch] = []
    for rewind in reversed(rewinds):
        if rewind.at <= head:
            found.append((rewind.at, head))
            head = rewind.to
    if head:
        found.append((1, head))
    return found[::-1]


def hidden(rewinds: Sequence[Rewind], head: int) -> list[Stretch]:
    """The parts of a log that were rewound, as its entry `head` sees it."""
    shown = stretches(rewinds, head)
    return [
        (before + 1, after - 1)
        for (_, before), (after, _) in zip([(0, 0), *shown], shown, strict=False)
        if before + 1 < after
    ]


def holds(parts: Iterable[Stretch], seq: int) -> bool:
    """Whether one of the parts has this entry."""
    return any(first <= seq <= last for first, last in parts)


def branch_of(rewinds: Sequence[Rewind], head: int, seq: int) -> int:
    """Where the newest conversation ends that an entry was part of."""
    ends = [head, *(rewind.at - 1 for rewind in reversed(rewinds))]
    return next(end for end in ends if holds(stretches(rewinds, end), seq))


def name_at(rewinds: Sequence[Rewind], now: str | None, seq: int) -> str | None:
    """What the agent's own program called the conversation at this point; `now` is what it does now."""
    return next((rewind.was for rewind in rewinds if rewind.at > seq), now)


def turns_in(entries: Iterable[Entry]) -> list[ConversationTurn]:
    """The finished turns of a conversation, from its `TELLING` entries in order.

    A turn ends where the session rests and waits for nobody, or where the agent is given further
    messages at once. Answers to what it asked, and messages that come with them, are part of its turn.
    """
    turns: list[ConversationTurn] = []
    first, goes_on = 0, False
    for group in _groups(e for e in entries if not (e.queued or e.withdrawn)):
        types, seq = {entry.type for entry in group}, group[0].seq
        if types == {"user.interrupt"} and not first:
            continue  # there was nothing to interrupt
        if "session.status_idle" in types:
            goes_on = group[0].fields["stop_reason"]["type"] == "requires_action"
            if first and not goes_on:
                turns.append(ConversationTurn(len(turns) + 1, first, seq, rests=True))
                first = 0
        elif "span.model_request_start" in types:
            goes_on = False
            first = first or seq  # without a message: it goes on with a turn that it had to leave
        else:
            goes_on = (goes_on and "user.interrupt" not in types) or bool(types & set(_ANSWERS))
            if first and not goes_on and "user.message" in types:
                turns.append(ConversationTurn(len(turns) + 1, first, seq - 1, rests=False))
                first = 0
            first = first or seq
    return turns


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Inputs that were handed over together stand side by side; all else stands alone."""
    group: list[Entry] = []
    for entry in entries:
        together = entry.type in _INPUTS and group and group[-1].type in _INPUTS
        if group and not (together and entry.seq == group[-1].seq + 1):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
