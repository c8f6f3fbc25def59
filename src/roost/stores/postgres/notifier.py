"""The notifier between nodes: notifications and previews, by LISTEN and NOTIFY, on one connection of its own.

Subscribers of this node are told at once; other nodes are told by the next NOTIFY, with everything that
gathered while the last one was under way. What is lost with a connection is made up for: when it is
back, every subscriber of this node is notified, and looks at the log.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import msgspec

from roost.domain.events import Preview
from roost.stores.notifier import LocalNotifier
from roost.stores.postgres import channel
from roost.stores.postgres.channel import CHANNEL, NOTIFY, Notified, PreviewPiece
from roost.stores.postgres.driver import Connection
from roost.stores.postgres.kept_connection import KeptConnection

_STILL_THERE: Final = 5.0  # seconds of silence before the connection is tried
_GATHER: Final = 0.01  # seconds in which previews gather: somebody reads them, nobody acts on them
_MOST_PREVIEWS: Final = 1000
_MOST_EVENTS: Final = 4096


class PostgresNotifier(LocalNotifier):
    """The `ports.notifier.Notifier` that carries notifications between nodes, by `NOTIFY`."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: set[str] = set()
        self._previews: deque[tuple[str, int, Preview]] = deque()
        self._sent, self._seen = _Lengths(), _Lengths()
        self._something = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[PostgresNotifier]:
        """A notifier that reaches other nodes, too. For this node's subscribers it need not be connected."""
        notifier, connection = cls(), KeptConnection(url)
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.keep_up, notifier._exchange)
            try:
                yield notifier
            except Exception as error:  # noqa: BLE001 - a task group would wrap it in another
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def notify(self, topic: str) -> bool:
        self._topics.add(topic)
        self._something.set()
        return super().notify(topic)

    def publish(self, session_id: str, preview: Preview) -> None:
        super().publish(session_id, preview)
        offset = self._sent.advance(preview)
        if self._previews and (joined := _joined(self._previews[-1], session_id, preview)):
            self._previews[-1] = joined
        elif len(self._previews) < _MOST_PREVIEWS:
            self._previews.append((session_id, offset, preview))
        self._something.set()

    async def _exchange(self, connection: Connection) -> None:
        self._previews.clear()
        await connection.add_listener(CHANNEL, self._receive)
        self.notify_all()
        while True:
            with anyio.move_on_after(_STILL_THERE):
                await self._something.wait()
            await self._send(connection)

    async def _send(self, connection: Connection) -> None:
        if not self._topics and self._previews:
            await anyio.sleep(_GATHER)
        topics, previews = self._topics, self._previews
        self._topics, self._previews, self._something = set(), deque(), anyio.Event()
        said = [*channel.notifications(topics)]
        for told in previews:
            said += channel.preview_pieces(*told)
        try:
            await connection.execute(NOTIFY, said)
        except BaseException:
            self._topics |= topics
            raise

    def _receive(self, connection: Any, pid: int, name: str, payload: str) -> None:
        if pid == connection.get_server_pid():
            return
        match channel.decoded(payload):
            case Notified(topics):
                for topic in topics:
                    super().notify(topic)
            case PreviewPiece(session_id, offset, preview):
                if self._seen.of(preview) == offset:  # else a piece was lost, and no more is shown
                    self._seen.advance(preview)
                    super().publish(session_id, preview)
            case None:
                pass


def _joined(
    last: tuple[str, int, Preview], session_id: str, preview: Preview
) -> tuple[str, int, Preview] | None:
    """Two pieces of one event's text as one."""
    session, offset, before = last
    same = (session, before.event_id, before.after) == (session_id, preview.event_id, preview.after)
    if not (same and before.text and preview.text):
        return None
    return session, offset, msgspec.structs.replace(before, text=before.text + preview.text)


class _Lengths:
    """How many characters of each event's text have passed; of the latest events only."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[str, int] = OrderedDict()

    def of(self, preview: Preview) -> int:
        return self._lengths.get(preview.event_id, 0)

    def advance(self, preview: Preview) -> int:
        """Where this piece begins."""
        before = self.of(preview)
        self._lengths[preview.event_id] = before + len(preview.text)
        self._lengths.move_to_end(preview.event_id)
        if len(self._lengths) > _MOST_EVENTS:
            self._lengths.popitem(last=False)
        return before
