"""What a request to the model used, and what its session may still spend.

Usage is read off the answer as it passes by. The answer is only looked at: nothing waits for this, and an
answer that cannot be read is passed on all the same. What an answer that was cut off would have said is
estimated, in the session's disfavour: else hanging up before the last line would make every request free.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec.structs import replace

from roost.domain.budget import Budget, Price, Prices, Spent, price_of
from roost.domain.usage import Usage
from roost.egress.reports import Refusal

_LONGEST_LINE = 4 * 1024**2
_LARGEST_BODY = 4 * 1024**2
_BYTES_PER_TOKEN = 4
_FRAME_BYTES = 80
"""What a frame with a piece of text weighs without the text."""
_PIECE = b'"delta"'
_RETRY_SECONDS = 2


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    """The `usage` object: Messages names, then Responses, then chat completions."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    input_tokens_details: _Details | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Holder(msgspec.Struct):
    usage: _Counts | None = None


class _Frame(msgspec.Struct):
    usage: _Counts | None = None
    message: _Holder | None = None
    response: _Holder | None = None


_decoder = msgspec.json.Decoder(_Frame)


class Scan(Protocol):
    """Reads the usage off an answer, in the form that the answer has."""

    usage: Usage
    complete: bool

    def feed(self, data: bytes) -> None:
        """The next bytes of the answer."""
        ...

    def finish(self) -> None:
        """The answer has ended, or was cut off."""
        ...


def scan_of(content_type: bytes) -> Scan:
    """The way to look at an answer of that type."""
    return StreamScan() if content_type.startswith(b"text/event-stream") else BodyScan()


class BodyScan:
    """An answer that is one JSON document."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.complete = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Keep it, unless it is too large to be an answer of a model."""
        self._size += len(data)
        if self._size <= _LARGEST_BODY:
            self._parts.append(data)

    def finish(self) -> None:
        """Parse what was kept, now that it is whole."""
        frame = _parsed(b"".join(self._parts))
        if frame is not None and frame.usage is not None:
            self.usage, self.complete = _merged(self.usage, frame.usage), True


class StreamScan:
    """An answer that is a stream of server-sent events.

    The input is known from the first event (`message_start`), the output from the last but one
    (`message_delta`, or `response.completed`).
    """

    def __init__(self) -> None:
        self.usage = Usage()
        self.complete = False
        self._line = b""
        self._written = 0

    def feed(self, data: bytes) -> None:
        """Look at the lines that are whole; keep the last one for the bytes to come."""
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._frame(line[5:])
        self._line = rest if len(rest) <= _LONGEST_LINE else b""

    def finish(self) -> None:
        """Estimate what a stream that was cut off did not say."""
        if not self.complete and self._written > self.usage.output_tokens:
            self.usage = msgspec.structs.replace(self.usage, output_tokens=self._written)

    def _frame(self, data: bytes) -> None:
        # Text that mentions "usage" has its quotes escaped, so it is not mistaken for the field.
        frame = _parsed(data) if b'"usage"' in data else None
        if frame is None:
            written = max(0, len(data) - _FRAME_BYTES) // _BYTES_PER_TOKEN
            # A short piece of text weighs less than its frame: it is one token at least.
            self._written += max(written, 1) if _PIECE in data else written
        elif frame.message is not None and frame.message.usage is not None:
            self.usage = _merged(self.usage, frame.message.usage)
        else:
            self._last(frame.usage or (frame.response and frame.response.usage) or None)

    def _last(self, counts: _Counts | None) -> None:
        if counts is not None:
            self.usage, self.complete = _merged(self.usage, counts), True


def _parsed(data: bytes) -> _Frame | None:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


def _merged(usage: Usage, counts: _Counts) -> Usage:
    """The counts are running totals: each one that is given replaces the one before."""
    read = _first(counts.cache_read_input_tokens, _cached(counts), usage.cache_read_input_tokens)
    return Usage(
        input_tokens=_first(_fresh(counts), usage.input_tokens),
        output_tokens=_first(counts.output_tokens, counts.completion_tokens, usage.output_tokens),
        cache_read_input_tokens=read,
        cache_creation_input_tokens=_first(
            counts.cache_creation_input_tokens, usage.cache_creation_input_tokens
        ),
    )


def _first(*numbers: int | None) -> int:
    return max(0, next((number for number in numbers if number is not None), 0))


def _cached(counts: _Counts) -> int | None:
    details = counts.input_tokens_details or counts.prompt_tokens_details
    return details.cached_tokens if details is not None else None


def _fresh(counts: _Counts) -> int | None:
    """The input that did not come from a cache; the Messages API counts it so, others do not."""
    total = counts.input_tokens if counts.input_tokens is not None else counts.prompt_tokens
    return total if total is None else total - (_cached(counts) or 0)


class BudgetHold(msgspec.Struct, eq=False):
    """What one request under way holds of the budget: the most it is expected to use."""

    model: str
    most: Usage


class Meter:
    """Counts a session's spending, and says when it is enough. The `budget` may be raised.

    What a request uses is known when it is over, so requests under way hold the most they may use:
    a session cannot spend its last token a hundred times at once. A request alone is let through as
    long as anything is left, so that a budget can be used up.
    """

    def __init__(self, budget: Budget, spent: Spent, prices: Prices) -> None:
        self.spent = spent
        self.budget = budget
        self._prices = prices
        self._holds: list[BudgetHold] = []

    def admit(self, model: str, most: Usage) -> BudgetHold:
        """Hold what a request may use. :raises Refusal: the budget is used up, or held by others"""
        if self.budget.max_cost is not None and model and self._price(model) is None:
            raise _reached(f"the budget is in money, and {model!r} has no list price")
        if (limit := self._over(self.spent, len(self._holds))) is not None:
            raise _reached(f"the session's budget of {limit} is used up")
        held = self.spent
        for other in self._holds:
            held = held.plus(Spent.on(other.most, self._price(other.model)))
        if self._holds and self._over(held, 0) is not None:
            raise Refusal(
                429,
                "requests under way hold the rest of the session's budget",
                retry_after=_RETRY_SECONDS,
            )
        hold = BudgetHold(model, most)
        self._holds.append(hold)
        return hold

    def settle(self, hold: BudgetHold, used: Usage) -> None:
        """A request is over: let go of its hold, and count what it used."""
        self._holds.remove(hold)
        self.spent = self.spent.plus(Spent.on(used, self._price(hold.model)))

    def _over(self, spent: Spent, under_way: int) -> str | None:
        return self.budget.reached(replace(spent, requests=spent.requests + under_way))

    def _price(self, model: str) -> Price | None:
        return price_of(self._prices, model)


def _reached(message: str) -> Refusal:
    return Refusal(402, message, reason="budget_reached")
