"""The only place that names concrete classes: which adapter stands behind which port."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from prometheus_client import CollectorRegistry, Gauge
from starlette.types import ASGIApp

from roost.api.app import build_app
from roost.api.deps import Deps
from roost.api.sse import Streams
from roost.api.tokens import Tokens
from roost.config import Settings
from roost.core.announce import AnnouncedLog
from roost.core.catalog import Agents, Environments
from roost.core.dispatch import Dispatcher
from roost.core.fanout import Fanout
from roost.core.follow import Follow
from roost.core.intake import Intake
from roost.core.keys import Keyring
from roost.core.logins import Logins
from roost.core.pool import Pool
from roost.core.runner import Runner
from roost.core.runs import Runs
from roost.core.sessions import Lifecycle
from roost.core.taskboard import Errands, Taskboard
from roost.core.tasks import alongside
from roost.core.wakes import Wakes
from roost.core.warmth import Warmth
from roost.domain.ids import mint
from roost.errors import StartupError
from roost.gateway.app import Gateway, Surface
from roost.serve.agents import Workforce, workforce
from roost.serve.first_start import ensure_administrator, token_secret
from roost.stores.bell import LocalBell
from roost.stores.sqlite import SqliteStore
from roost.web.site import Site


class Drain:
    """Whether the server is on its way out: it refuses new work, and says goodbye to streams."""

    def __init__(self) -> None:
        self.draining = False
        self.streams = Streams()

    def begin(self) -> None:
        """Once; there is no way back."""
        self.draining = True
        self.streams.close()


@dataclass(frozen=True)
class Roost:
    """A server, assembled and not yet listening."""

    app: ASGIApp
    dispatcher: Dispatcher
    pool: Pool
    drain: Drain
    admin_key: Path
    model: str


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncGenerator[Roost, None]:
    """Open everything in order; close it in reverse when the context ends."""
    bell = LocalBell()
    async with (
        SqliteStore.open(_database(settings)) as store,
        workforce(settings, store.catalog, store.workspaces, bell) as hands,
        alongside(hands.files.run),
    ):
        # What is started ahead counts as kept awake: so there is always room for it.
        most = max(1, settings.max_live - settings.pool)
        warmth = Warmth(bell, seconds=settings.sleep_after, most=most)
        wakes = Wakes(bell, settings.max_wakes or 2 * (os.cpu_count() or 1))
        pool = Pool(
            store.log,
            store.sessions,
            bell,
            hands.harnesses,
            hands.places,
            wakes,
            notes=settings.data / "pool",
            size=settings.pool if settings.sleep_after else 0,
            seconds=settings.sleep_after,
            room=lambda: settings.max_live - len(warmth),
        )
        tasks = Taskboard(store.catalog)
        fanout = Fanout(store.log, store.sessions, bell, hands.files.status)
        log = AnnouncedLog(store.log, fanout.committed)
        intake = Intake(log, bell, max_queued=settings.max_queued)
        runner = Runner(
            log,
            store.sessions,
            bell,
            hands.harnesses,
            hands.places,
            warmth,
            wakes,
            pool,
            Errands(store.log, intake, tasks),
        )
        dispatcher = Dispatcher(
            mint("node"),
            store.log,
            bell,
            runner,
            lease_seconds=settings.lease_seconds,
            max_runners=settings.max_runners,
        )
        keyring, drain = Keyring(store.keys), Drain()
        admin_key = await ensure_administrator(keyring, settings)
        deps = _deps(settings, store, bell, keyring, dispatcher, pool, drain, hands, intake, tasks)
        gateway = Gateway(deps, fanout, hands.places.stats)
        async with anyio.create_task_group() as services:
            await services.start(gateway.run)
            await services.start(deps.runs.run)
            app = Site(Surface(build_app(deps), gateway))
            yield Roost(app, dispatcher, pool, drain, admin_key, hands.model)
            services.cancel_scope.cancel()


def _deps(
    settings: Settings,
    store: SqliteStore,
    bell: LocalBell,
    keyring: Keyring,
    dispatcher: Dispatcher,
    pool: Pool,
    drain: Drain,
    hands: Workforce,
    intake: Intake,
    tasks: Taskboard,
) -> Deps:
    agents, environments = Agents(store.catalog), Environments(store.catalog)
    registry = CollectorRegistry()
    runners = Gauge("roost_runners", "Sessions at work now.", registry=registry)
    runners.set_function(lambda: dispatcher.busy)
    warm = Gauge("roost_warm_agents", "Agents kept started for idle sessions.", registry=registry)
    warm.set_function(lambda: dispatcher.running - dispatcher.busy)

    waking = Gauge("roost_waking_agents", "Agents that are being started.", registry=registry)
    waking.set_function(lambda: dispatcher.waking)

    ahead = Gauge("roost_pooled_agents", "Agents started ahead of a session.", registry=registry)
    ahead.set_function(lambda: len(pool))

    async def ready() -> dict[str, Any]:
        await store.ping()
        return {"node": dispatcher.node, "runners": dispatcher.busy}

    lifecycle = Lifecycle(
        store.sessions,
        agents,
        environments,
        bell,
        harnesses=hands.harnesses,
        default_harness=hands.default,
        trust=hands.trust,
        tasks=tasks,
        pool=pool,
        max_sessions=settings.max_sessions,
    )
    return Deps(
        settings=settings,
        intake=intake,
        follow=Follow(
            store.log,
            store.sessions,
            bell,
            heartbeat=settings.heartbeat_seconds,
            catch_up=settings.catch_up_seconds,
            since=time.time_ns() // 1000,
        ),
        lifecycle=lifecycle,
        agents=agents,
        environments=environments,
        log=store.log,
        keyring=keyring,
        logins=Logins(store.catalog, keyring, seconds=settings.login_seconds),
        tasks=tasks,
        runs=Runs(store.catalog, tasks, lifecycle, keyring, store.log, bell),
        tokens=Tokens(token_secret(settings.data), seconds=settings.token_seconds),
        registry=registry,
        ready=ready,
        draining=lambda: drain.draining,
        streams=drain.streams,
    )


def _database(settings: Settings) -> Path:
    url = settings.database_url
    if url is None:
        return settings.data / "roost.db"
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not path:
        raise StartupError(
            f"ROOST_DATABASE_URL: {url!r} is not a database this version can open",
            hint="It opens sqlite:///PATH, with a fourth slash if the path is absolute.",
        )
    return Path(path)
