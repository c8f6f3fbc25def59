"""Sessions' directories below the vault: `ports.volumes`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from anyio import to_thread

from roost.disk import remove
from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import LocalVolume, Mount

_FOLDER: Final = ".workspaces"


class VaultVolumes:
    """`ports.volumes.SessionVolumes`. `data` is the server's own directory, which nobody may be shown."""

    def __init__(self, vault: Path, data: Path) -> None:
        self._vault = vault
        self._data = data

    @property
    def vault(self) -> LocalVolume:
        return LocalVolume(self._vault)

    @property
    def hidden(self) -> Path:
        return self._vault / _FOLDER

    def of(self, workspace_id: str) -> LocalVolume:
        return LocalVolume(self.hidden / workspace_id)

    def make(self, workspace_id: str) -> None:
        self.of(workspace_id).path.mkdir(parents=True, exist_ok=True)

    async def remove(self, workspace_id: str) -> None:
        await to_thread.run_sync(remove, self.of(workspace_id).path)

    def vault_mount(self, target: str) -> Mount:
        # A link leads nowhere inside a sandbox, so there is nothing to hide behind it.
        return Mount(
            self._vault, target, hidden=[] if self.hidden.is_symlink() else [self.hidden.name]
        )

    def check_vault(self) -> None:
        vault = self._vault.resolve()
        own = vault / _FOLDER
        for path in (own.resolve(), self._data.resolve()):
            if path.is_relative_to(vault) and path != own:
                raise SandboxUnavailable(
                    f"the server's own {path.name} lies in the vault, where sessions would see it",
                    hint="Move it elsewhere with ROOST_DATA, or give another vault with ROOST_VAULT.",
                )
