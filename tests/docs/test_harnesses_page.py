"""The page on harnesses: its table and its picture are the code's."""

from __future__ import annotations

import re

from tests.docs.reading import text

from roost.config import Settings
from roost.harnesses import HARNESSES, HarnessContext, ModelAddress
from roost.harnesses.conversation_states import TABLE, ConversationState
from roost.ports.egress import Origin
from roost.ports.harness import Harness
from roost.ports.harness_profile import Abilities
from roost.testing.same_conversation import DIFFERENCES

PAGE = "docs/harnesses.md"


def _shipped() -> dict[str, Harness]:
    url = "http://127.0.0.1:1"
    context = HarnessContext(
        settings=Settings(),
        upstreams={"anthropic": ModelAddress(url=url)},
        origin_of=lambda api, model: Origin(url=url, protocol=api),
    )
    made = [
        each
        for kind in ("claude", "code", "codex", "messages", "scripted")
        for each in HARNESSES.load(kind)(context)
    ]
    return {harness.name: harness for harness in made}


def _rows(first: str) -> list[list[str]]:
    """The rows of the table whose head begins so."""
    table = text(PAGE).split(f"\n| {first} |")[1].split("\n\n")[0]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def test_the_table_of_abilities_is_what_each_harness_declares() -> None:
    harnesses = _shipped()
    head = next(line for line in text(PAGE).splitlines() if line.startswith("| ability |"))
    assert re.findall(r"`(\w+)`", head) == list(harnesses)
    declared = [
        [name, *("yes" if getattr(h.profile.abilities, name) else "no" for h in harnesses.values())]
        for name in Abilities.__struct_fields__
    ]
    assert [[row[0], *row[2:]] for row in _rows("ability")] == declared


def test_the_list_of_harnesses_is_what_is_shipped() -> None:
    listed = {row[0]: (row[2], row[3]) for row in _rows("harness")}
    profiles = {name: harness.profile for name, harness in _shipped().items()}
    assert listed == {
        name: ("yes" if profile.needs_sandbox else "no", profile.upstream or "none")
        for name, profile in profiles.items()
    }


def test_where_clients_see_a_difference_is_what_the_kit_lets_pass() -> None:
    assert _rows("part of the conversation") == [
        [each.part, each.harness, each.words] for each in DIFFERENCES
    ]


def test_the_picture_of_a_conversation_is_its_table() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): (.+)$", text(PAGE), re.M)
    assert sorted(drawn) == sorted(
        (before.value, after.value, move.value) for (before, move), after in TABLE.items()
    )


def test_every_state_can_be_reached_and_left() -> None:
    assert {state for state, _ in TABLE} == {*TABLE.values()} == {*ConversationState}
