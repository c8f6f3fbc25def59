"""Everything in one PostgreSQL database: any number of nodes, durable commits in groups."""

from roost.stores.postgres.bell import PostgresBell
from roost.stores.postgres.store import PostgresStore

__all__ = ["PostgresBell", "PostgresStore"]
