"""The bell within one process: no task, no timer and no thread for an ear that waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio

from roost.domain.events import Preview

_MOST_PREVIEWS = 4096  # per listener; a reader this far behind waits for the event itself
_MOST_TEXT = 256 * 1024  # characters of them


class LocalBell:
    """Rings for listeners of this process. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._ears: dict[str, set[_Hears]] = {}

    def ring(self, topic: str) -> bool:
        ears = self._ears.get(topic, ())
        for ear in ears:
            ear.hear()
        return bool(ears)

    def ring_all(self) -> None:
        """Ring every topic that anybody listens at: whatever may have been missed is looked for."""
        for topic in self._ears:
            LocalBell.ring(self, topic)

    def publish(self, session_id: str, preview: Preview) -> None:
        for ear in self._ears.get(session_id, ()):
            ear.see(preview)

    @contextmanager
    def listen(self, topic: str, *, previews: bool = False) -> Generator[_Ear, None, None]:
        ear = _Ear(previews)
        self._add(topic, ear)
        try:
            yield ear
        finally:
            self._remove(topic, ear)

    @contextmanager
    def switchboard(self) -> Generator[_Switchboard, None, None]:
        board = _Switchboard(self._add, self._remove)
        try:
            yield board
        finally:
            for topic in board.topics():
                board.unplug(topic)

    def _add(self, topic: str, ear: _Hears) -> None:
        self._ears.setdefault(topic, set()).add(ear)

    def _remove(self, topic: str, ear: _Hears) -> None:
        self._ears[topic].discard(ear)
        if not self._ears[topic]:
            del self._ears[topic]


class _Hears(Protocol):
    def hear(self) -> None: ...
    def see(self, preview: Preview) -> None: ...


class _Switchboard:
    def __init__(
        self, add: Callable[[str, _Hears], None], remove: Callable[[str, _Hears], None]
    ) -> None:
        self._add = add
        self._remove = remove
        self._plugs: dict[str, _Plug] = {}
        self._rung: dict[str, None] = {}
        self._previews: list[tuple[str, Preview]] = []
        self._waiting: anyio.Event | None = None

    def topics(self) -> list[str]:
        return list(self._plugs)

    def plug(self, topic: str) -> None:
        if topic not in self._plugs:
            self._plugs[topic] = _Plug(self, topic)
            self._add(topic, self._plugs[topic])

    def unplug(self, topic: str) -> None:
        if plug := self._plugs.pop(topic, None):
            self._remove(topic, plug)

    def hear(self, topic: str) -> None:
        self._rung[topic] = None
        self._stir()

    def see(self, topic: str, preview: Preview) -> None:
        self._previews.append((topic, preview))
        self._stir()

    def _stir(self) -> None:
        if self._waiting is not None:
            self._waiting.set()

    async def wait(self, timeout: float) -> bool:
        if not (self._rung or self._previews):
            self._waiting = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._waiting.wait()
            self._waiting = None
        return bool(self._rung or self._previews)

    def rung(self) -> list[str]:
        rung, self._rung = list(self._rung), {}
        return rung

    def previews(self) -> list[tuple[str, Preview]]:
        seen, self._previews = self._previews, []
        return seen


class _Plug:
    __slots__ = ("_board", "_topic")

    def __init__(self, board: _Switchboard, topic: str) -> None:
        self._board = board
        self._topic = topic

    def hear(self) -> None:
        self._board.hear(self._topic)

    def see(self, preview: Preview) -> None:
        self._board.see(self._topic, preview)


class _Ear:
    __slots__ = ("_lost", "_previews", "_rung", "_text", "_waiting")

    def __init__(self, previews: bool) -> None:
        self._rung = False
        self._waiting: anyio.Event | None = None
        self._previews: list[Preview] | None = [] if previews else None
        self._text = 0
        self._lost: str | None = None

    def hear(self) -> None:
        self._rung = True
        self._stir()

    def see(self, preview: Preview) -> None:
        if self._previews is None or preview.event_id == self._lost:
            return
        self._text += len(preview.text)
        if len(self._previews) >= _MOST_PREVIEWS or self._text > _MOST_TEXT:
            self._lost = preview.event_id  # a prefix stays a prefix: nothing more of this event
            return
        self._previews.append(preview)
        self._stir()

    def _stir(self) -> None:
        if self._waiting is not None:
            self._waiting.set()

    async def wait(self, timeout: float) -> bool:
        if not self._something():
            self._waiting = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._waiting.wait()
            self._waiting = None
        return self._something()

    def _something(self) -> bool:
        return self._rung or bool(self._previews)

    def rung(self) -> bool:
        rung, self._rung = self._rung, False
        return rung

    def previews(self) -> list[Preview]:
        if not self._previews:
            return []
        seen, self._previews, self._text = self._previews, [], 0
        return seen
