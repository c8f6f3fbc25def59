"""What was taken back at one node ends at all of them.

A key that was revoked, or a login that has ended, opens nothing at the node where that was done, at once.
The others are notified, forget whom they know, and close what it had opened there. A notification may be lost:
then a request is refused when the node looks again, seconds later, and what is open ends with the next look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from anyio.abc import TaskStatus

from roost.core.access.environment_keys import EnvironmentKeys
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.errors import RoostError, Unauthenticated
from roost.ports.notifier import Notifier

Opener = tuple[str, str | None]
"""The id of a key, and that of the login that stands for it, if one does."""

_KEYS: Final = "keys"
_LOOK_AGAIN: Final = 30.0
_log = logging.getLogger(__name__)


class Revocations:
    """Tells the others, and is told of theirs. `openers` have something open here; `close` ends it."""

    def __init__(
        self,
        keyring: Keyring,
        logins: Logins,
        environment_keys: EnvironmentKeys,
        notifier: Notifier,
        openers: Callable[[], Iterable[Opener]],
        close: Callable[[str], None],
    ) -> None:
        self._keyring = keyring
        self._logins = logins
        self._environment_keys = environment_keys
        self._notifier = notifier
        self._openers = openers
        self._close = close

    def tell(self, opener: str) -> None:
        """A key or a login has just ended here."""
        self._close(opener)
        self._notifier.notify(_KEYS)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Listen for revoked keys and forget them here, until cancelled."""
        with self._notifier.subscribe(_KEYS) as subscription:
            task_status.started()
            while True:
                if await subscription.until_notified(_LOOK_AGAIN):
                    self._keyring.doubt()
                    self._logins.doubt()
                    self._environment_keys.doubt()
                try:
                    await self._end()
                except RoostError as error:
                    _log.warning("cannot look for revoked keys: %s", error.message)

    async def _end(self) -> None:
        openers = set(self._openers())
        if not openers:
            return
        revoked = {key.id for key in await self._keyring.all() if key.revoked_at is not None}
        for key_id in revoked & {key_id for key_id, _ in openers}:
            self._close(key_id)
        for key_id in await self._environment_keys.ended({key_id for key_id, _ in openers}):
            self._close(key_id)
        for login_id in {login_id for _, login_id in openers if login_id is not None}:
            try:
                await self._logins.still(login_id)
            except Unauthenticated:
                self._close(login_id)
