"""Which kind of place the operator has chosen."""

from __future__ import annotations

from typing import Final

from roost.config import Settings, words
from roost.ports.sandbox import SandboxProvider
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.host import HostProvider

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"  # where a machine has its own bwrap


def chosen(settings: Settings) -> BubblewrapProvider | DockerProvider:
    """The provider that sandboxed sessions get their places from."""
    return _docker(settings) if settings.sandbox == "docker" else _bubblewrap()


def others(settings: Settings) -> list[SandboxProvider]:
    """What sessions may fall back to, and no sandbox at all, if there are trust levels for that."""
    kinds = set(words(settings.sandbox_fallbacks)) - {settings.sandbox}
    found: list[SandboxProvider] = [
        _docker(settings) if kind == "docker" else _bubblewrap() for kind in kinds
    ]
    if set(words(settings.trust_levels)) - {"sandboxed"}:
        found.append(HostProvider())
    return found


def _bubblewrap() -> BubblewrapProvider:
    return BubblewrapProvider(path=_PATH)


def _docker(settings: Settings) -> DockerProvider:
    return DockerProvider(
        socket=settings.docker_socket,
        image=settings.docker_image,
        runtime=settings.docker_runtime,
    )
