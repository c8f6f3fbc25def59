"""The script in the prompt: found, read, and reduced to the one step to play now.

People write scripts by hand, so everything that can be wrong with one is answered as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=3600)]
_HeaderValue = Annotated[str, Meta(pattern=r"\A[\x20-\x7e]*\Z")]
_HeaderName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9-]+\Z")]

_MARK = re.compile(r'SCRIPT\[(?!\s*\{\s*\\")')
"""Where a script begins. One that is quoted in JSON, as part of a call that somebody tells of, is not to be played."""
_ASIDES = ("<system-reminder>", "<environment_context>")
"""How agents' own notes to the model are told from what people say."""
_EXAMPLE = 'A script looks like this: SCRIPT[{"text": "Hello."}]'


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool to call. An input that is text calls a free-form tool, which only Responses has."""

    tool: str
    input: dict[str, Any] | str = {}


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refusal in place of an answer, for the first `times` tries; without `times`, for ever."""

    status: Annotated[int, Meta(ge=400, le=599)] = 500
    times: Annotated[int, Meta(ge=0)] | None = None
    type: str | None = None
    message: str = "This failure is in the script."
    headers: dict[_HeaderName, _HeaderValue] = {}


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One answer: what it says, what it calls, and how it goes wrong."""

    text: str | None = None
    thinking: str | None = None
    tool: str | None = None
    input: dict[str, Any] | str = {}
    tools: list[ScriptedCall] = []
    delay: Seconds = 0
    """Seconds before the first byte."""
    chunk_delay: Seconds = 0
    """Seconds between two pieces of text."""
    cut: Annotated[int, Meta(ge=0)] | None = None
    """The connection breaks after this many pieces of text."""
    error: Fault | None = None
    stop_reason: str | None = None
    usage: dict[str, Annotated[int, Meta(ge=0)]] = {}
    """Token counts to report in place of the estimated ones."""

    @property
    def calls(self) -> list[ScriptedCall]:
        """Every tool the step calls, in order."""
        alone = [ScriptedCall(self.tool, self.input)] if self.tool is not None else []
        return alone + self.tools


class SpokenTurn(msgspec.Struct, frozen=True):
    """One message of a conversation, whatever API it came by: who, and the texts they said."""

    role: Literal["user", "assistant"]
    texts: Sequence[str] = ()


class Cue(msgspec.Struct, frozen=True):
    """The step to play. `key` names it among all scripts; None for an answer off script."""

    step: Step
    key: tuple[str, int] | None = None


class BadScript(Exception):
    """Why a script cannot be played, in words for the person who wrote it."""


def cue(turns: Sequence[SpokenTurn]) -> Cue:
    """What to answer to this conversation."""
    for index in range(len(turns) - 1, -1, -1):
        source = _script_in(turns[index])
        if source is not None:
            played = sum(turn.role == "assistant" for turn in turns[index + 1 :])
            return _cue_from(source, played, turns)
    return Cue(Step(text=f"Scripted model here. {_seen(turns)}"))


def pieces(text: str) -> list[str]:
    """The text in pieces that break after words, as it is streamed."""
    return re.findall(r"\S+\s*|\s+", text)


def _script_in(turn: SpokenTurn) -> str | None:
    if turn.role == "user":
        for text in reversed(turn.texts):
            if mark := _MARK.search(text):
                return f"[{text[mark.end() :]}"
    return None


def _cue_from(source: str, played: int, turns: Sequence[SpokenTurn]) -> Cue:
    try:
        steps = read(source)
    except BadScript as problem:
        return Cue(Step(text=f"{problem} {_EXAMPLE}"))
    if played < len(steps):
        return Cue(steps[played], (source, played))
    over = f"The script is over: all of its steps are played ({len(steps)})."
    return Cue(Step(text=f"{over} {_seen(turns)}"))


def read(source: str) -> list[Step]:
    """The steps in a text that begins with the script's `[`; what follows its `]` is ignored.

    :raises BadScript: it is not JSON, or not steps
    """
    try:
        raw, _ = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(source)
        return msgspec.convert(raw, list[Step])
    except json.JSONDecodeError as error:
        near = source[max(0, error.pos - 20) : error.pos + 20]
        raise BadScript(
            f"I cannot read the script: {error.msg} at character {error.pos + 1} after SCRIPT, "
            f"near {near!r}."
        ) from None
    except msgspec.ValidationError as error:
        raise BadScript(
            f"I cannot play the script: {error}. A step may have: {', '.join(Step.__struct_fields__)}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadScript(f"I cannot read the script: {error}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _seen(turns: Sequence[SpokenTurn]) -> str:
    said = [
        text
        for turn in turns
        if turn.role == "user"
        for text in turn.texts
        if text.strip() and not any(aside in text for aside in _ASIDES)
    ]
    count = "1 user message" if len(said) == 1 else f"{len(said)} user messages"
    last = _excerpt(said[-1]) if said else "nothing"
    return f"I have seen {count} in this conversation; the last one says: {last}"


def _excerpt(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
