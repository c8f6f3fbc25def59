"""PostgreSQL keeps the contract of every port it is behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import asyncpg
import pytest
from tests.contracts.postgres_notifiers import two_notifiers

from roost.stores.postgres import PostgresNotifier, PostgresStore
from roost.testing.buckets_contract import BucketsContract
from roost.testing.catalog_contract import CatalogContract
from roost.testing.credentials_contract import CredentialsContract
from roost.testing.keys_contract import KeysContract
from roost.testing.log_contract import LogContract
from roost.testing.marks_contract import MarksContract
from roost.testing.nodes_contract import NodesContract
from roost.testing.notifier_contract import NotifierContract
from roost.testing.postgres import PostgresServer
from roost.testing.runs_contract import RunsContract
from roost.testing.sessions_contract import SessionsContract
from roost.testing.webhooks_contract import WebhooksContract
from roost.testing.workspaces_contract import WorkspacesContract

TABLES = "webhooks deliveries credentials runs sessions specs entries receipts creations graves records versions keys nodes commits shared workspaces buckets shown"


async def emptied(server: PostgresServer) -> str:
    """A database that every test of this file uses, with nothing in it."""
    url = server.url("contracts")
    try:
        connection = await asyncpg.connect(url)
    except asyncpg.InvalidCatalogNameError:
        await server.do("CREATE DATABASE contracts")
        async with PostgresStore.open(url):  # whichever test comes first finds its tables
            return url
    try:
        for table in TABLES.split():
            await connection.execute(f"DELETE FROM {table}")  # quicker than TRUNCATE for so little
    finally:
        await connection.close()
    return url


class OnPostgres:
    @pytest.fixture
    async def store(self, postgres: PostgresServer) -> AsyncGenerator[PostgresStore]:
        async with PostgresStore.open(await emptied(postgres)) as store:
            yield store


class TestPostgresLog(OnPostgres, LogContract):
    pass


class TestPostgresSessions(OnPostgres, SessionsContract):
    pass


class TestPostgresCatalog(OnPostgres, CatalogContract):
    pass


class TestPostgresRuns(OnPostgres, RunsContract):
    pass


class TestPostgresCredentials(OnPostgres, CredentialsContract):
    pass


class TestPostgresKeys(OnPostgres, KeysContract):
    pass


class TestPostgresBuckets(OnPostgres, BucketsContract):
    pass


class TestPostgresMarks(OnPostgres, MarksContract):
    pass


class TestPostgresNodes(OnPostgres, NodesContract):
    pass


class TestPostgresWebhooks(OnPostgres, WebhooksContract):
    pass


class TestPostgresWorkspaces(OnPostgres, WorkspacesContract):
    pass


class TestPostgresNotifier(NotifierContract):
    @pytest.fixture
    async def notifier(self, postgres: PostgresServer) -> AsyncGenerator[PostgresNotifier]:
        async with two_notifiers(await emptied(postgres)) as (notifier, _):
            yield notifier
