"""`AskUserQuestion`: the call by which an agent puts questions to a person, whichever program it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.harnesses.json_lines import Json

QUESTION: Final = "AskUserQuestion"


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
