"""Everything in one SQLite file: one process, one writer thread, durable commits in groups."""

from roost.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
