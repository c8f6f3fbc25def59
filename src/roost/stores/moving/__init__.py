"""From a SQLite file to PostgreSQL: everything a server keeps in its database, row by row, proved equal."""

from roost.stores.moving.copying import move
from roost.stores.moving.progress import MoveProgress

__all__ = ["MoveProgress", "move"]
