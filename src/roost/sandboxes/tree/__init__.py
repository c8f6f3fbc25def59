"""A workspace's files on this machine: `ports.tree` and `ports.folder`, for directories that sandboxes write in."""

from roost.sandboxes.tree.folder import LocalFolder
from roost.sandboxes.tree.local import LocalTree

__all__ = ["LocalFolder", "LocalTree"]
