"""The directories that sessions work in, on this machine.

Each session has one of its own, its home. A named workspace has one that its sessions share. The vault is
the operator's own directory: the others lie in it, out of sight of whoever is shown the vault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from roost.ports.sandbox_provider import LocalVolume, Mount


class SessionVolumes(Protocol):
    """Where the files of sessions and of workspaces are. Only `make`, `remove` and the two below it touch a disk."""

    @property
    def vault(self) -> LocalVolume:
        """The vault itself, in which sessions work whose trust level is not `sandboxed`."""
        ...

    @property
    def hidden(self) -> Path:
        """The directory in the vault that holds all volumes, and that no session may look into."""
        ...

    def of(self, workspace_id: str) -> LocalVolume:
        """The volume of a session (its home) or of a named workspace; it need not exist yet."""
        ...

    def make(self, workspace_id: str) -> None:
        """Make the volume's directory unless it is there. Called before files are restored to it."""
        ...

    async def remove(self, workspace_id: str) -> None:
        """Remove the volume and all in it; nothing happens if there is none. :raises OSError: it stays"""
        ...

    def vault_mount(self, target: str) -> Mount:
        """The vault as a sandbox is shown it: read-only, and without the volumes."""
        ...

    def check_vault(self) -> None:
        """Called before a session is shown the vault.

        :raises SandboxUnavailable: it would see the server's own data, or other sessions' files
        """
        ...
