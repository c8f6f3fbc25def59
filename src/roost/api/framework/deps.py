"""What the HTTP surface is given: put together in `serve/`, used everywhere in `api/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from prometheus_client import CollectorRegistry

from roost.api.access.login_attempts import LoginAttempts
from roost.api.access.rates import RateLimiter
from roost.api.access.tokens import SocketTokens
from roost.api.framework.body_budget import BodyBudget
from roost.api.framework.metrics import Meters
from roost.api.framework.sse import OpenStreams
from roost.config import Settings
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.core.access.revocations import Revocations
from roost.core.access.sessions import SessionAccess
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.files.attachments import Attachments
from roost.core.files.resources import Resources
from roost.core.files.store import FileStore
from roost.core.read.follow import Follow
from roost.core.read.large_events import LargeEvents
from roost.core.records.agents import Agents, Environments
from roost.core.records.skills import Skills
from roost.core.records.tasks import Tasks
from roost.core.sandbox.budgets import Budgets
from roost.core.sessions.forks import Forks
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.sessions.task_runs import Runs
from roost.core.sessions.transfer import Transfer
from roost.core.work.nodes import Fleet
from roost.core.workspaces.browse import Browse
from roost.core.write.intake import Intake
from roost.ports.buckets import Buckets
from roost.ports.log import Log
from roost.ports.notifier import Notifier

_UPLOADS: Final = 8  # times the largest upload, that all uploads under way may have together

_LARGE_LISTING: Final = 2 * 1024 * 1024  # a page has one megabyte, and the event that made it full


@dataclass(frozen=True, kw_only=True)
class Deps:
    """`ready` tells how the server is, or raises a RoostError if it cannot serve.

    `draining`: it hands its work over, and clients had better go to another node. `stopping`: it will be
    gone soon. `streams` are the event streams open now: a stopping server calls `streams.close()`.
    """

    settings: Settings
    intake: Intake
    attachments: Attachments
    follow: Follow
    lifecycle: Lifecycle
    forks: Forks
    transfer: Transfer
    agents: Agents
    environments: Environments
    skills: Skills
    budgets: Budgets
    browse: Browse
    filestore: FileStore
    resources: Resources
    log: Log
    keyring: Keyring
    logins: Logins
    tokens: SocketTokens
    tasks: Tasks
    workspaces: NamedWorkspaces
    runs: Runs
    registry: CollectorRegistry
    ready: Callable[[], Awaitable[dict[str, Any]]]
    fleet: Fleet
    notifier: Notifier
    buckets: Buckets
    draining: Callable[[], bool]
    stopping: Callable[[], bool]
    streams: OpenStreams = field(default_factory=OpenStreams)

    @property
    def access(self) -> SessionAccess:
        """Who may do what."""
        return self.lifecycle.access

    @cached_property
    def revocations(self) -> Revocations:
        """What ends, here and at other nodes."""
        streams = self.streams
        return Revocations(self.keyring, self.logins, self.notifier, streams.openers, streams.close)

    @cached_property
    def rates(self) -> RateLimiter:
        """How often."""
        return RateLimiter(
            self.buckets,
            writes_per_minute=self.settings.writes_per_minute,
            reads_per_minute=self.settings.reads_per_minute,
        )

    @cached_property
    def large(self) -> LargeEvents:
        """How many listings of large events are put together at a time."""
        return LargeEvents(over=_LARGE_LISTING)

    @cached_property
    def attempts(self) -> LoginAttempts:
        """How many wrong keys."""
        return LoginAttempts()

    @cached_property
    def bodies(self) -> BodyBudget:
        """How much of requests is in memory."""
        most = max(self.settings.max_bodies_bytes, self.settings.max_body_bytes)
        return BodyBudget(most, max(most // 2, self.settings.max_body_bytes))

    @cached_property
    def uploads(self) -> BodyBudget:
        """How much of uploads is in temporary files."""
        largest = self.settings.max_file_bytes
        return BodyBudget(_UPLOADS * largest, _UPLOADS * largest // 2)

    @cached_property
    def meters(self) -> Meters:
        """What is counted."""
        return Meters(self.registry, lambda: len(self.streams))
