"""A container per sandbox, over the Docker Engine API.

`docs/sandboxes.md` says how it differs from the default. A reader may take the files in this order:
`provider` (opens sandboxes), `sandbox` (one of them), `process` (a command in it), `recipe` (what a container
is made of), `profile` (its system-call filter), then `engine` and `wire` (how the engine is spoken to).
`images` makes what containers are made of, `layers` adds packages to it.
"""

from __future__ import annotations

from roost.config import Settings
from roost.sandboxes.docker.provider import DockerProvider

__all__ = ["DockerProvider", "make"]


def make(settings: Settings) -> DockerProvider:
    """Make the provider from the settings; `SANDBOXES` names this function."""
    return DockerProvider(
        socket=settings.docker_socket,
        image=settings.docker_image,
        runtime=settings.docker_runtime,
        data=settings.data.resolve(),
    )
