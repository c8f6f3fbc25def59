"""A sandbox that is not on the machine of the server, beside what `ports/sandbox` says of every one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class AwaySandbox(Protocol):
    """A sandbox on another machine, whose files are copies of those in the plan's volumes."""

    @property
    def is_behind(self) -> bool:
        """Whether an earlier one of the session was lost, with files that it had changed."""
        ...

    async def bring_back(self) -> None:
        """Returns once the plan's volumes have what was changed inside.

        Called when a turn is over, before its files are stored.

        :raises FilesNotFetched: not now: they are too large, or there is no room for them. The sandbox has them still
        :raises SandboxFailed: they are lost, with the sandbox
        """
        ...
