"""Asking a model: one request as a span of events, repeated until it is answered, and an interrupt at any moment.

What an answer comes to is another part's to say (`Finish`). All that follows from one answer is one `Emit`, so a
crash leaves the whole answer or none of it. Which failures end a turn or the session: see `retries`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from itertools import count

import anyio

from roost.domain.events import Draft
from roost.harnesses.messages_api import Json, MessagesApi, ModelAnswer
from roost.harnesses.retries import ModelFailure, pause
from roost.harnesses.turn_ends import GIVEN_UP, span_end
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit, Output, Show, Trouble

Finish = Callable[[ModelAnswer, Draft], Emit]
"""Makes the events of an answer, the end of its span among them, which is given. An answer that is not complete
was cut short by an interrupt, and counts as far as it is said. Raises `ModelFailure` if it makes no sense.
"""


class Stop:
    """An interrupt: asked for once, from another task, at any moment."""

    def __init__(self) -> None:
        self.asked = False
        self._scope: anyio.CancelScope | None = None

    def ask(self) -> None:
        self.asked = True
        if self._scope is not None:
            self._scope.cancel()

    @contextmanager
    def cutting_short(self) -> Generator[None, None, None]:
        """What is awaited inside ends when the interrupt comes. Never `yield` an output in here:
        a cancel scope must not stay open while the caller does something else.
        """
        with anyio.CancelScope() as self._scope:
            if self.asked:
                self._scope.cancel()
            try:
                yield
            finally:
                self._scope = None


class ModelRequests:
    """The requests of one conversation. A failed one is repeated up to `retries` times, first after
    `first_pause` seconds.
    """

    def __init__(self, api: MessagesApi, retries: int, first_pause: float) -> None:
        self._api = api
        self._retries = retries
        self._first_pause = first_pause

    async def outputs(
        self, body: Json | bytes, stop: Stop, finish: Finish
    ) -> AsyncGenerator[Output, None]:
        """Makes one request until it is answered; the turn is given up if it never is."""
        for tries in count(1):
            request = _Request(self._api, body, stop, finish)
            async with aclosing(request.outputs()) as outputs:
                async for output in outputs:
                    yield output
            failure = request.failure
            if failure is None:
                return
            last = tries > self._retries and failure.retry == "retrying"
            yield Trouble(failure.error, failure.message, "exhausted" if last else failure.retry)
            if last or failure.retry != "retrying":
                yield GIVEN_UP
                return
            with stop.cutting_short():
                await anyio.sleep(pause(tries, self._first_pause, failure.wait))
            if stop.asked:
                return


class _Request:
    """One request to the model, from the span that opens it to the one `Emit` that closes it."""

    def __init__(self, api: MessagesApi, body: Json | bytes, stop: Stop, finish: Finish) -> None:
        self.failure: ModelFailure | None = None
        self._answer = ModelAnswer()
        self._api = api
        self._body = body
        self._stop = stop
        self._finish = finish

    async def outputs(self) -> AsyncGenerator[Output, None]:
        start = new_draft("span.model_request_start")
        yield Emit([start], meanwhile=True)  # the model need not wait for that
        try:
            async with aclosing(self._previews()) as previews:
                async for preview in previews:
                    yield preview
            outcome = self._outcome(start.id)
        except ModelFailure as failure:
            self.failure = failure
            usage = self._answer.usage
            outcome = Emit([span_end(start.id, usage, error=True)], spent=usage)
        yield outcome

    async def _previews(self) -> AsyncGenerator[Show, None]:
        async with aclosing(self._api.ask(self._body)) as events:
            while not self._stop.asked:
                event = None
                with self._stop.cutting_short():
                    event = await anext(events, None)
                if event is None:
                    return
                for show in self._answer.add(event):
                    yield show

    def _outcome(self, start_id: str) -> Emit:
        if not self._answer.complete and not self._stop.asked:
            raise ModelFailure("The model's response was cut off.")
        return self._finish(self._answer, span_end(start_id, self._answer.usage, error=False))
