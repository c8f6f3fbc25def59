"""Workspaces that outlive their disk: snapshots of their files, restored wherever they are needed.

`gather` reads a tree, `snapshots` stores and finds, `restore` puts back, `garbage` tidies up.
"""

from roost.core.workspaces.restore import Progress
from roost.core.workspaces.snapshots import Snapshots, Taken

__all__ = ["Progress", "Snapshots", "Taken"]
