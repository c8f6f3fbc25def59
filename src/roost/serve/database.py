"""Which database stands behind the stores, and which notifier goes with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from roost.config import Settings
from roost.errors import StartupError
from roost.ports.notifier import Notifier
from roost.ports.store import Store
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore


def is_postgres(url: str) -> bool:
    """Whether a URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


def sqlite_path(url: str) -> Path | None:
    """The file that a URL names, if it names one: `sqlite:///PATH`."""
    path = url.removeprefix("sqlite:///")
    return Path(path) if path not in (url, "") else None


class SharedStore(Store, Protocol):
    """What a server needs of its database besides."""

    async def share(self, name: str, value: bytes) -> bytes:
        """The value that all servers of this database have under a name: the first one's."""
        ...

    async def ping(self) -> None:
        """Returns once the database has taken a commit. :raises Unavailable: it does not"""
        ...


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[tuple[SharedStore, Notifier]]:
    """The store that the settings name, and the notifier by which its servers tell each other."""
    url = settings.database_url
    secret = url.get_secret_value() if url else f"sqlite:///{settings.data / 'roost.db'}"
    scheme, _, rest = secret.partition(":")
    if (path := sqlite_path(secret)) is not None:
        async with SqliteStore.open(path) as store:
            yield store, LocalNotifier()
    elif is_postgres(secret):
        async with _postgres(secret) as both:
            yield both
    else:
        kind = f"{scheme}://" if rest.startswith("//") else "that"  # what follows may be secret
        raise StartupError(
            f"ROOST_DATABASE_URL: {kind} is not a database this version can open",
            hint="It opens sqlite:///PATH, with a fourth slash if the path is absolute, and "
            "postgresql://USER:PASSWORD@HOST/NAME.",
        )


@asynccontextmanager
async def _postgres(url: str) -> AsyncGenerator[tuple[SharedStore, Notifier]]:
    # Imported only here: a server on SQLite need not load the driver.
    from roost.stores.postgres import PostgresNotifier, PostgresStore

    async with PostgresStore.open(url) as store, PostgresNotifier.open(url) as notifier:
        yield store, notifier
