"""A PostgreSQL with a standby, which has each commit before it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from roost.testing.postgres import PostgresServer, programs
from tests.parts import need


@contextmanager
def primary_and_standby() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """Both are started, and stopped in the end."""
    need("PostgreSQL", programs(), "make setup")
    primary = PostgresServer()
    standby: PostgresServer | None = None
    try:
        primary.make()
        primary.start()
        standby = primary.standby()
        standby.start()
        anyio.run(primary.do, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        anyio.run(primary.do, "SELECT pg_reload_conf()")
        yield primary, standby
    finally:
        primary.stop()
        if standby is not None:
            standby.stop()


def url_of_both(url: str, primary: PostgresServer, standby: PostgresServer) -> str:
    """How to connect to whichever of the two is the primary now."""
    return url.replace(str(primary.folder), f"{primary.folder},{standby.folder}")
