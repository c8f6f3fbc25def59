"""The sandboxes that are open on this node: what they use, and the files of those that are on another machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from roost.core.sandbox.reports import OnLack
from roost.errors import FilesNotFetched, SandboxFailed
from roost.ports.away_sandbox import AwaySandbox
from roost.ports.drafts import trouble
from roost.ports.sandbox import Sandbox, Stats


class RunningSandboxes:
    """Each by its session's id, as its provider has opened it."""

    def __init__(self) -> None:
        self._open: dict[str, Sandbox] = {}

    @contextmanager
    def having(self, session_id: str, sandbox: Sandbox) -> Generator[None, None, None]:
        """One is open for as long as the context lasts."""
        self._open[session_id] = sandbox
        try:
            yield
        finally:
            if self._open.get(session_id) is sandbox:  # a newer lease may have opened its own
                del self._open[session_id]

    def has_lost_files(self, session_id: str) -> bool:
        """Whether files were lost with an earlier sandbox, which was on another machine."""
        found = self._open.get(session_id)
        return isinstance(found, AwaySandbox) and found.is_behind

    async def brought_back(self, session_id: str, say: OnLack) -> bool:
        """Have what a session's agent has changed of its files here, if its sandbox is on another machine. Whether it
        is; if it cannot be had now, `say` is told why.

        :raises SandboxFailed: it is lost
        """
        found = self._open.get(session_id)
        if isinstance(found, AwaySandbox):
            try:
                await found.bring_back()
            except FilesNotFetched as failed:
                await say(trouble(failed.code, f"{failed.message}. {failed.hint}", "retrying"))
                return False
        return True

    async def stats(self, session_id: str) -> Stats | None:
        """What a session's sandbox uses now; None if it has none open here."""
        found = self._open.get(session_id)
        if found is None:
            return None
        try:
            return await found.stats()
        except SandboxFailed:
            return None  # it is going away just now
