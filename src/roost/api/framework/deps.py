"""What every request needs, whatever its resource: put together in `serve/wiring.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from prometheus_client import CollectorRegistry

from roost.api.access.rates import RateLimiter
from roost.api.access.workers import WorkerAccess
from roost.api.framework.body_budget import BodyBudget
from roost.api.framework.metrics import Meters
from roost.api.framework.server import OpenStreams, ServerState
from roost.api.framework.services import Services
from roost.config import Settings
from roost.core.access.keys import Keyring
from roost.core.access.logins import Logins
from roost.core.access.sessions import SessionAccess
from roost.ports.buckets import Buckets

_UPLOADS: Final = 8  # times the largest upload, that all uploads under way may have together


@dataclass(frozen=True, kw_only=True)
class Deps:
    """What is needed on the way from a request to its handler. What only some handlers need is in `services`."""

    settings: Settings
    server: ServerState
    keyring: Keyring
    logins: Logins
    access: SessionAccess
    workers: WorkerAccess
    buckets: Buckets
    registry: CollectorRegistry
    services: Services

    @property
    def streams(self) -> OpenStreams:
        """The event streams that are open now."""
        return self.server.streams

    @cached_property
    def rates(self) -> RateLimiter:
        """Counts how often each key calls."""
        return RateLimiter(
            self.buckets,
            writes_per_minute=self.settings.writes_per_minute,
            reads_per_minute=self.settings.reads_per_minute,
        )

    @cached_property
    def bodies(self) -> BodyBudget:
        """Counts how many bytes of requests are in memory."""
        most = max(self.settings.max_bodies_bytes, self.settings.max_body_bytes)
        return BodyBudget(most, max(most // 2, self.settings.max_body_bytes))

    @cached_property
    def uploads(self) -> BodyBudget:
        """Counts how many bytes of uploads are in temporary files."""
        largest = self.settings.max_file_bytes
        return BodyBudget(_UPLOADS * largest, _UPLOADS * largest // 2)

    @cached_property
    def meters(self) -> Meters:
        """Counts what is answered, for `/metrics`."""
        return Meters(self.registry, lambda: len(self.streams))
