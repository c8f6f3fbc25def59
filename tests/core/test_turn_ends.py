"""The snapshot of a turn has the files that the turn has left, and nothing of the next one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.core.node import Node, node, use_parts
from tests.core.test_sandboxes import FakeEgress, FakeProvider, SandboxedHarness, sandboxes
from tests.workspaces.complete_files import look_at_all
from tests.workspaces.trees import UIDS

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.sync import SyncPace
from roost.domain.events import Entry
from roost.ports.harness import Brief, Conversation, Output
from roost.sandboxes.tree import LocalTree
from roost.testing.null_parts import runner_parts, workspaces_of


class HeldSnapshots(Snapshots):
    """Looks at no file before `may` is set."""

    def __init__(self, blobs: FolderBlobs) -> None:
        super().__init__(blobs)
        self.may = anyio.Event()

    async def take(self, *args: Any, **more: Any) -> Any:
        await self.may.wait()
        return await super().take(*args, **more)


class Writing(SandboxedHarness):
    """An agent that writes a file in each of its turns; `wrote` has an event for each."""

    homes: Path

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.turns = 0
        self.wrote = [anyio.Event() for _ in range(3)]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        async with super().open(brief) as conversation:
            take = conversation.turn

            async def turn(inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
                self.turns += 1
                path = anyio.Path(self.homes / brief.session.id / f"turn-{self.turns}")
                await path.write_text("done")
                self.wrote[self.turns].set()
                async for output in take(inputs, again=again):
                    yield output

            conversation.turn = turn  # type: ignore[method-assign]
            yield conversation


@asynccontextmanager
async def writing(
    data: Path,
) -> AsyncGenerator[tuple[Node, Writing, LocalWorkspaces, HeldSnapshots], None]:
    async with node(data) as roost:
        snapshots, homes = HeldSnapshots(FolderBlobs(data / "blobs")), data / "vault/.workspaces"
        files = workspaces_of(
            snapshots,
            roost.store.workspaces,
            lambda id: LocalTree(homes / id, data / "notes", UIDS),
            roost.notifier,
            pace=SyncPace(turn=60),
        )
        opens = sandboxes(data / "vault", FakeProvider(), FakeEgress(), roost, files=files)
        agent = Writing(roost.harnesses["scripted"])
        agent.homes = homes
        use_parts(
            roost,
            runner_parts(
                *(roost.store, roost.notifier, {"in-sandbox": agent}),
                sandboxes=opens,
                standby=roost.standby,
                sleep_after=60,
            ),
        )
        yield roost, agent, files, snapshots


async def test_a_turn_begins_when_the_files_of_the_one_before_are_stored(tmp_path: Path):
    async with writing(tmp_path) as (roost, agent, files, snapshots):
        session = await roost.session(harness="in-sandbox")
        first = await roost.turn(session, "one")
        sent = await roost.say(session, "two")
        with anyio.move_on_after(1):  # it does not begin; if it did, its file would be in the way
            await agent.wrote[2].wait()
        snapshots.may.set()
        await roost.until(session, "session.status_idle", sent)
        found = await files.snapshot_of(session.id, 1, first[-1].seq)
        assert found is not None
        stored = (await look_at_all(snapshots, session.id))[found.sequence]
        assert stored == {"turn-1": b"done"}
