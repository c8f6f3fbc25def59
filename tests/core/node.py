"""One node of the core in this process: real database, real harness, real (scripted) model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from roost.core.read.follow import Follow
from roost.core.work.dispatch import Dispatcher
from roost.core.work.nodes import NodeLease
from roost.core.work.runner import RunnerParts
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.events import Draft, Entry
from roost.domain.session import Session, Spec
from roost.harnesses.scripted import ScriptedHarness
from roost.ids import mint
from roost.ports.drafts import new_draft
from roost.ports.harness import Harness
from roost.ports.notifier import WORK, Notifier
from roost.serve.http import listening
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore
from roost.testing.null_parts import UnlimitedCapacity, model_at, runner_parts
from roost.testing.scripted_model import ScriptedModel, scripted_model

TENANT = "tenant_1"
AGENT = {"id": "agent_1", "version": 1, "name": "helper", "model": {"id": "scripted"}, "tools": []}


@dataclass
class Node:
    store: SqliteStore
    notifier: Notifier
    intake: Intake
    follow: Follow
    dispatcher: Dispatcher
    model: ScriptedModel
    standby: StandbyRunners
    harnesses: Mapping[str, Harness]

    async def session(self, *drafts: Draft, harness: str = "scripted", **more: str) -> Session:
        spec = Spec(agent=AGENT, environment_id="env_1", harness=harness, **more)
        made = await self.store.sessions.create(TENANT, mint("sesn"), spec, drafts)
        self.notifier.notify(WORK)
        return made

    async def say(self, session: Session, *texts: str) -> int:
        drafts = [message(text) for text in texts]
        return (await self.intake.accept(session.id, drafts)).entries[-1].seq

    async def until(self, session: Session, type: str, after: int = 0) -> list[Entry]:
        """The entries past `after`, up to the first of this type."""
        seen: list[Entry] = []
        with anyio.fail_after(60):
            async with aclosing(self.follow.tail(session.id, after)) as tail:
                async for shown in tail:
                    if isinstance(shown, Entry):
                        seen.append(shown)
                        if shown.type == type:
                            return seen
        raise AssertionError("the tail ended")

    async def turn(self, session: Session, text: str) -> list[Entry]:
        return await self.until(session, "session.status_idle", await self.say(session, text) - 1)


def message(text: str) -> Draft:
    return new_draft("user.message", content=[{"type": "text", "text": text}])


def texts(entries: list[Entry]) -> list[str]:
    return [e.fields["content"][0]["text"] for e in entries if e.type == "agent.message"]


def types(entries: list[Entry]) -> list[str]:
    return [entry.type for entry in entries]


@asynccontextmanager
async def node(
    data: Path,
    *,
    harnesses: Mapping[str, Harness] | None = None,
    max_runners: int = 64,
    heartbeat: float = 15,
    stop_seconds: float = 0.2,
    drain_seconds: float = 60,
    lease_seconds: float = 3,
    working: bool = True,
    notifier: Notifier | None = None,
    queue_of: Callable[[SqliteStore, Notifier], WorkspaceQueue | None] = lambda store, notifier: (
        None
    ),
) -> AsyncGenerator[Node, None]:
    model = scripted_model()
    async with (
        listening(model, "127.0.0.1", 0) as url,
        SqliteStore.open(data / "roost.db") as store,
        anyio.create_task_group() as tasks,
    ):
        notifier = notifier or LocalNotifier()
        scripted = ScriptedHarness(model_at(url, "no key"), retries=2, retry_seconds=0.01)
        standby = StandbyRunners()
        known = {"scripted": scripted, **(harnesses or {})}
        member = NodeLease(
            mint("node"), store.log, store.nodes, notifier, lease_seconds=lease_seconds
        )
        dispatcher = Dispatcher(
            member,
            runner_parts(store, notifier, known, queue=queue_of(store, notifier)),
            max_runners=max_runners,
            drain_seconds=drain_seconds,
            machine=UnlimitedCapacity(),
        )
        if working:
            await tasks.start(dispatcher.run, stop_seconds)
        yield Node(
            store,
            notifier,
            Intake(store.log, notifier, standby, max_queued=1000),
            Follow(
                store.log, store.sessions, notifier, store.marks, heartbeat=heartbeat, catch_up=10
            ),
            dispatcher,
            model,
            standby,
            known,
        )
        dispatcher.stop()


def use_parts(roost: Node, parts: RunnerParts) -> None:
    """What its runners have from now on; none of them may be at work yet."""
    roost.dispatcher._parts = parts
    roost.dispatcher._handover._idle = parts.idle
