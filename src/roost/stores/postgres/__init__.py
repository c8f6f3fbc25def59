"""Everything in one PostgreSQL database: any number of nodes, durable commits in groups."""

from roost.stores.postgres.notifier import PostgresNotifier
from roost.stores.postgres.store import PostgresStore

__all__ = ["PostgresNotifier", "PostgresStore"]
