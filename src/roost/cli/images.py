"""The command `roost image`, which builds the image that containers are made of."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
from rich.console import Console
from rich.text import Text

from roost.cli.screen import clean
from roost.config import Settings
from roost.sandboxes.docker import images
from roost.sandboxes.docker.engine import Engine


def build_image(settings: Settings, base: str | None, packages: str | None) -> None:
    """Build what `docker` sandboxes are made of, and print its name."""
    start = base or images.BASE
    anyio.run(_build, settings, Path(start) if Path(start).is_file() else start, packages)
    print(settings.docker_image)


async def _build(settings: Settings, base: str | Path, packages: str | None) -> None:
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    work = images.build(
        Engine(settings.docker_socket), settings.docker_image, base=base, packages=packages
    )
    with notes.status(Text(f"building {settings.docker_image} from {base}")) as status:
        async with aclosing(work):
            async for progress in work:
                text = Text(clean(Text.from_ansi(progress.text).plain), style="dim")
                if progress.passing:
                    status.update(text)
                else:
                    notes.print(text)
