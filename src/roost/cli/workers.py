"""The command `roost worker`."""

from __future__ import annotations

from pathlib import Path

from roost.cli.environment import environment_key, server_url, settings
from roost.errors import StartupError
from roost.serve.logs import configure
from roost.serve.worker import WorkerOptions, work


def run_worker(
    environment: str,
    directory: Path,
    url: str | None,
    *,
    most: int,
    max_idle: float,
    network: bool,
) -> None:
    """Serve sessions of an environment until told to stop. :raises StartupError: there is no key"""
    key = environment_key()
    if key is None:
        raise StartupError(
            "a worker needs the key of its environment in ANTHROPIC_ENVIRONMENT_KEY",
            hint="`roost environments keys create` makes one, on the server.",
        )
    found = settings(url=url)
    configure(found.log_format, found.log_level)
    work(
        WorkerOptions(
            url=server_url(found),
            environment_id=environment,
            key=key,
            directory=directory.absolute(),
            most=most,
            max_idle=max_idle,
            network=network,
        ),
        found,
    )
