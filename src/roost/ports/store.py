"""The ports that one database stands behind."""

from __future__ import annotations

from typing import Protocol

from roost.ports.buckets import Buckets
from roost.ports.catalog import Catalog
from roost.ports.credentials import Credentials
from roost.ports.keys import Keys
from roost.ports.log import Log
from roost.ports.marks import Marks
from roost.ports.nodes import Nodes
from roost.ports.runs import Runs
from roost.ports.sessions import Sessions
from roost.ports.webhooks import Webhooks
from roost.ports.workspaces import Workspaces


class Store(Protocol):
    """All ports of one database."""

    @property
    def log(self) -> Log: ...  # noqa: D102 - the port says it
    @property
    def sessions(self) -> Sessions: ...  # noqa: D102
    @property
    def catalog(self) -> Catalog: ...  # noqa: D102
    @property
    def credentials(self) -> Credentials: ...  # noqa: D102
    @property
    def runs(self) -> Runs: ...  # noqa: D102
    @property
    def keys(self) -> Keys: ...  # noqa: D102
    @property
    def webhooks(self) -> Webhooks: ...  # noqa: D102
    @property
    def workspaces(self) -> Workspaces: ...  # noqa: D102
    @property
    def nodes(self) -> Nodes: ...  # noqa: D102
    @property
    def buckets(self) -> Buckets: ...  # noqa: D102
    @property
    def marks(self) -> Marks: ...  # noqa: D102
