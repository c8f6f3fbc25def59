"""Tells the sockets of sessions that have a task when a client changes it by the API.

What the task says is in its record, and a notification is only a hint to look there: one that is lost costs a
client the update, not the truth. What an agent changes itself is in its session's log, and comes from there.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from anyio.abc import TaskStatus

from roost.core.records.tasks import Tasks, topic
from roost.domain.task import FIELDS
from roost.errors import NotFound, RoostError
from roost.gateway.server_messages import frame
from roost.ports.notifier import Notifier, Subscriptions

_LOOK_AGAIN: Final = 3600.0  # seconds; nothing depends on it
_log = logging.getLogger(__name__)


class TaskFollower(Protocol):
    """A socket whose session has a task."""

    def send(self, frames: bytes) -> None:
        """Send frames to the client."""
        ...


class TaskUpdates:
    """Has one subscription for all tasks whose sessions are followed, and wakes only when one of them changes."""

    def __init__(self, tasks: Tasks, notifier: Notifier) -> None:
        self._tasks = tasks
        self._notifier = notifier
        self._subscriptions: Subscriptions
        self._followers: dict[str, tuple[str, str, set[TaskFollower]]] = {}

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Send updates, until cancelled."""
        with self._notifier.subscribe_many() as self._subscriptions:
            task_status.started()
            while True:
                await self._subscriptions.wait(_LOOK_AGAIN)
                for notified in self._subscriptions.notified():
                    await self._send(notified)

    def follow(self, tenant: str, task_id: str, follower: TaskFollower) -> None:
        """Send this one the updates of a task, too, until it leaves."""
        at = topic(task_id)
        if at not in self._followers:
            self._followers[at] = tenant, task_id, set()
            self._subscriptions.add(at)
        self._followers[at][2].add(follower)

    def leave(self, task_id: str, follower: TaskFollower) -> None:
        """Send it no more updates; nothing happens if it never followed."""
        at = topic(task_id)
        if at not in self._followers:
            return
        *_, followers = self._followers[at]
        followers.discard(follower)
        if not followers:
            del self._followers[at]
            self._subscriptions.remove(at)

    async def _send(self, at: str) -> None:
        if at not in self._followers:
            return
        tenant, task_id, followers = self._followers[at]
        try:
            record = await self._tasks.get(tenant, task_id)
        except NotFound:
            return  # deleted since
        except RoostError as error:
            _log.warning("cannot read a task: %s", error.message, extra={"action": "task_news"})
            return
        update = frame(updated(task_id, record.body))
        for follower in list(followers):
            follower.send(update)


def updated(task_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """The `task_updated` message. It has no `seq`: it is not from a session's log."""
    shown = {name: body[name] for name in (*FIELDS, "status")}
    when = {"schedule": body["schedule"], "pausedReason": body["paused_reason"]}
    return {"type": "task_updated", "taskId": task_id, **shown, **when}
