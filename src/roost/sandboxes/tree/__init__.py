"""A workspace's files on this machine: `ports.tree`, for directories that sandboxes write in."""

from roost.sandboxes.tree.local import LocalTree

__all__ = ["LocalTree"]
