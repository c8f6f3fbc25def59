"""Which part of a log is the conversation, and what its turns are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.events import Entry
from roost.domain.rewinds import Rewind, branch_of, hidden, holds, name_at, stretches, turns_in
from roost.ports.drafts import new_draft

END = {"stop_reason": {"type": "end_turn"}}
ASKS = {"stop_reason": {"type": "requires_action"}}
SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "m": ("user.message", {}),
    "i": ("user.interrupt", {}),
    "x": ("user.message", {"withdrawn_at": "2026-01-01T00:00:00.000000Z"}),
    "c": ("user.tool_confirmation", {}),
    "r": ("user.custom_tool_result", {}),
    "w": ("span.model_request_start", {}),
    "!": ("session.status_idle", END),
    "?": ("session.status_idle", ASKS),
    ".": ("agent.message", {}),
}


def log(short: str) -> list[Entry]:
    """Entries by their letters; a capital one is queued."""
    entries = []
    for seq, letter in enumerate(short, 1):
        kind, fields = SHORT[letter.lower()]
        draft = new_draft(kind, **fields)
        entries.append(Entry(seq, draft.id, kind, draft.body, 0, queued=letter.isupper()))
    return entries


@pytest.mark.parametrize(
    ("short", "turns"),
    [
        ("Mm.w.!", [(1, 2, 6, True)]),
        ("Mmw.!Mmw.!", [(1, 2, 5, True), (2, 7, 10, True)]),
        ("Mmw.", []),
        # The next message was there before the turn was over.
        ("MmwM.mw.!", [(1, 2, 5, False), (2, 6, 9, True)]),
        ("MmwMM.mmw.!", [(1, 2, 6, False), (2, 7, 11, True)]),
        # The turn waits for somebody in its middle, and goes on.
        ("Mmw.?Ccw.!", [(1, 2, 10, True)]),
        ("Mmw.?MCcmw.!", [(1, 2, 12, True)]),
        ("Mmw.?r.w.!", [(1, 2, 10, True)]),
        ("Mmw.?Mr.mw.!", [(1, 2, 12, True)]),
        # It had to rest before it was done, and goes on by itself.
        ("Mmw.!w.!Mmw.!", [(1, 2, 5, True), (2, 6, 8, True), (3, 10, 13, True)]),
        ("MmwM.!w.mw.!", [(1, 2, 6, True), (2, 7, 8, False), (3, 9, 12, True)]),
        # What nobody had taken up was withdrawn.
        ("Mix!Mmw.!", [(1, 6, 9, True)]),
        ("Mmw.!iMmw.!", [(1, 2, 5, True), (2, 8, 11, True)]),
        # It waited, and was interrupted.
        ("Mmw.?Ii!Mmw.!", [(1, 2, 8, True), (2, 10, 13, True)]),
    ],
)
def test_turns_end_where_the_agent_is_given_something_new(
    short: str, turns: list[tuple[int, int, int, bool]]
) -> None:
    found = [(turn.number, turn.first, turn.last, turn.rests) for turn in turns_in(log(short))]
    assert found == turns


def test_a_rewind_hides_what_was_between() -> None:
    rewinds = [Rewind(5, 2)]
    assert stretches(rewinds, 8) == [(1, 2), (5, 8)]
    assert hidden(rewinds, 8) == [(3, 4)]
    assert stretches(rewinds, 4) == [(1, 4)]
    assert branch_of(rewinds, 8, 3) == 4
    assert branch_of(rewinds, 8, 6) == 8


def test_a_rewind_may_lead_back_to_what_was_rewound() -> None:
    rewinds = [Rewind(5, 2), Rewind(7, 4)]
    assert stretches(rewinds, 9) == [(1, 4), (7, 9)]
    assert hidden(rewinds, 9) == [(5, 6)]


def test_the_name_of_a_conversation_is_the_one_it_had_then() -> None:
    rewinds = [Rewind(5, 2, was="a"), Rewind(9, 6, was="b")]
    assert [name_at(rewinds, "c", seq) for seq in (4, 5, 8, 9)] == ["a", "b", "b", "c"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Rewind], int]:
    rewinds, head = [], 0
    for grown in draw(st.lists(st.integers(1, 5), max_size=6)):
        head += grown
        to = draw(st.integers(1, head))
        head += 1
        rewinds.append(Rewind(head, to))
    return rewinds, head + draw(st.integers(1, 5))


@given(histories())
def test_what_is_shown_and_what_is_hidden_make_up_the_whole_log(
    history: tuple[list[Rewind], int],
) -> None:
    rewinds, head = history
    shown, left_out = stretches(rewinds, head), hidden(rewinds, head)
    for seq in range(1, head + 1):
        assert holds(shown, seq) is not holds(left_out, seq)
        assert holds(stretches(rewinds, branch_of(rewinds, head, seq)), seq)
    assert shown == sorted(shown)


@given(histories())
def test_the_conversation_goes_on_exactly_where_a_rewind_led(
    history: tuple[list[Rewind], int],
) -> None:
    rewinds, head = history
    if rewinds:
        last = rewinds[-1]
        assert stretches(rewinds, head) == [*stretches(rewinds, last.to), (last.at, head)]
