"""A container per sandbox, over the Docker Engine API.

`docs/sandboxes.md` says how it differs from the default. A reader may take the files in this order:
`provider` (opens sandboxes), `sandbox` (one of them), `process` (a command in it), `recipe` (what a container
is made of), `profile` (its system-call filter), then `engine` and `wire` (how the engine is spoken to).
`images` makes what containers are made of, `layers` adds packages to it.
"""

from __future__ import annotations

import re
from typing import Final

from roost.config import Settings, words
from roost.errors import StartupError
from roost.sandboxes.docker.provider import DockerProvider

__all__ = ["DockerProvider", "make"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def make(settings: Settings) -> DockerProvider:
    """Make the provider from the settings; `SANDBOXES` names this function."""
    return DockerProvider(
        socket=settings.docker_socket,
        image=settings.docker_image,
        images=_images(settings),
        runtime=settings.docker_runtime,
        data=settings.data.resolve(),
    )


def _images(settings: Settings) -> dict[str, str]:
    """:raises StartupError: one of them has no name, or names no image"""
    named: dict[str, str] = {}
    for each in words(settings.docker_images or ""):
        name, _, image = each.partition("=")
        if not _NAME.fullmatch(name) or not image or name in named:
            raise StartupError(
                f"ROOST_DOCKER_IMAGES: {each!r} is not NAME=IMAGE, with a name of its own",
                hint="A name has letters, digits, '.', '_' and '-': node=node:22-slim,rust=rust:1.80",
            )
        named[name] = image
    return named
