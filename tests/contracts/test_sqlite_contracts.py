"""SQLite keeps the contract of every port it is behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from roost.stores.sqlite import SqliteStore
from roost.testing.buckets_contract import BucketsContract
from roost.testing.catalog_contract import CatalogContract
from roost.testing.credentials_contract import CredentialsContract
from roost.testing.keys_contract import KeysContract
from roost.testing.log_contract import LogContract
from roost.testing.marks_contract import MarksContract
from roost.testing.nodes_contract import NodesContract
from roost.testing.runs_contract import RunsContract
from roost.testing.sessions_contract import SessionsContract
from roost.testing.webhooks_contract import WebhooksContract
from roost.testing.workspaces_contract import WorkspacesContract


class OnSqlite:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncGenerator[SqliteStore]:
        async with SqliteStore.open(tmp_path / "roost.db") as store:
            yield store


class TestSqliteLog(OnSqlite, LogContract):
    pass


class TestSqliteSessions(OnSqlite, SessionsContract):
    pass


class TestSqliteCatalog(OnSqlite, CatalogContract):
    pass


class TestSqliteRuns(OnSqlite, RunsContract):
    pass


class TestSqliteCredentials(OnSqlite, CredentialsContract):
    pass


class TestSqliteKeys(OnSqlite, KeysContract):
    pass


class TestSqliteBuckets(OnSqlite, BucketsContract):
    pass


class TestSqliteMarks(OnSqlite, MarksContract):
    pass


class TestSqliteNodes(OnSqlite, NodesContract):
    pass


class TestSqliteWebhooks(OnSqlite, WebhooksContract):
    pass


class TestSqliteWorkspaces(OnSqlite, WorkspacesContract):
    pass
