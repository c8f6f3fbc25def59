"""Which kind of place the operator has chosen."""

from __future__ import annotations

from typing import Final

from roost.config import Settings
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.docker import DockerProvider

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"  # where a machine has its own bwrap


def chosen(settings: Settings) -> BubblewrapProvider | DockerProvider:
    """The provider that sandboxed sessions get their places from."""
    if settings.sandbox == "docker":
        return DockerProvider(
            socket=settings.docker_socket,
            image=settings.docker_image,
            runtime=settings.docker_runtime,
        )
    return BubblewrapProvider(path=_PATH)
