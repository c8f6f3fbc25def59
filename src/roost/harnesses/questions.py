"""`AskUserQuestion`: the call by which an agent puts questions to a person, whichever program it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from roost.harnesses.json_lines import Json

QUESTION: Final = "AskUserQuestion"

_Said = Annotated[str, msgspec.Meta(min_length=1)]


class _Option(msgspec.Struct, frozen=True):
    label: _Said


class _Question(msgspec.Struct, frozen=True):
    question: _Said
    options: Annotated[list[_Option], msgspec.Meta(min_length=2)]
    multiSelect: bool = False


class _Asked(msgspec.Struct, frozen=True):
    questions: Annotated[list[_Question], msgspec.Meta(min_length=1, max_length=4)]


def check_questions(given: Any) -> None:
    """Whether a client can show the questions of a call. :raises msgspec.ValidationError: it cannot"""
    msgspec.convert(given, _Asked)


def answers_to(questions: Sequence[Json], text: str) -> Json:
    """A client's answer to `AskUserQuestion`, as agents want it: question to chosen label.

    Taken are `{"answers": {question: label}}`, `{question: label}`, and plain text, which is then the
    answer to every question. A list of labels is several choices.
    """
    asked = [str(question.get("question", "")) for question in questions]
    try:
        said = msgspec.json.decode(text)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("answers"), dict):
        said = said["answers"]
    if isinstance(said, dict) and said.keys() <= set(asked):
        return {question: _label(answer) for question, answer in said.items()}
    return dict.fromkeys(asked, text)


def _label(answer: object) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer))
    return str(answer)
