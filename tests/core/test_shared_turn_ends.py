"""Which files a shared workspace had at the end of which session's turn, and forks that get them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import anyio
import pytest
from tests.core.test_shared_workspaces import Machine, W, setup
from tests.workspaces.complete_files import look_at_all
from tests.workspaces.trees import UIDS

from roost.blobs.folder import FolderBlobs
from roost.core.workspaces.shared import shared_past
from roost.domain.session import Lease
from roost.domain.sync import SyncState
from roost.sandboxes.tree import LocalTree
from roost.stores.sqlite import SqliteStore
from roost.testing.faulty_blobs import Fault, FaultyBlobs
from roost.testing.stage import Stage, message

HOME = "sesn_home"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        await setup(store)
        yield store


def machine_at(folder: Path, store: SqliteStore) -> Machine:
    """A node that knows what the logs say, as a server does."""
    here = Machine(folder, store, "node_a")
    past_of = partial(shared_past, store.workspaces, store.log)
    here.files._facts = replace(here.files._facts, past_of=past_of)
    return here


async def turn_in(
    machine: Machine, session: str, seq: int, text: str, *, waits: bool = True
) -> None:
    await machine.commons.begun(W)
    if text:
        (machine.place / "file").write_text(text)
    machine.commons.ended(W, session, seq)
    if waits:
        await machine.files.snapshot_of(W, seq, seq, session)


async def files_at(machine: Machine, session: str, seq: int) -> dict[str, bytes] | None:
    """What the snapshot of a turn has."""
    found = await machine.files.snapshot_of(W, seq, seq, session)
    if found is None:
        return None
    return (await look_at_all(machine.snapshots, W))[found.sequence]


async def test_each_sessions_turn_has_the_files_it_left_whoever_came_after(
    tmp_path: Path, store: SqliteStore
):
    async with machine_at(tmp_path / "a", store).running() as machine, machine.join():
        await turn_in(machine, "s1", 5, "one")
        await turn_in(machine, "s2", 9, "two")
        await turn_in(machine, "s1", 11, "three")
        await turn_in(machine, "s2", 20, "")  # changes nothing
        seen = [await files_at(machine, *end) for end in (("s1", 5), ("s2", 9), ("s1", 11))]
        assert [files and files["file"] for files in seen] == [b"one", b"two", b"three"]
        assert await files_at(machine, "s2", 20) == seen[2]
        assert await files_at(machine, "s2", 5) is None
        ends = [snapshot.turns for snapshot in (await machine.snapshots.head(W)).snapshots]
        assert ends == [(("s1", 5),), (("s2", 9),), (("s1", 11), ("s2", 20))]


async def test_turns_that_end_together_have_one_snapshot_and_later_ones_are_not_mixed_in(
    tmp_path: Path, store: SqliteStore
):
    async with machine_at(tmp_path / "a", store).running() as machine, machine.join():
        for number in range(10):
            machine.commons.ended(W, f"s{number}", 1)
        (machine.place / "file").write_text("of all")
        await machine.commons.begun(W)
        (machine.place / "file").write_text("of one that began then")
        machine.commons.changed(W)
    seen = [await files_at(machine, f"s{number}", 1) for number in range(10)]
    assert seen == [{"file": b"of all"}] * 10


async def test_a_turn_is_not_said_to_be_stored_if_another_one_began_before(
    tmp_path: Path, store: SqliteStore
):
    machine = machine_at(tmp_path / "a", store)
    fails = list[Fault]()
    machine.snapshots._blobs = FaultyBlobs(
        machine.snapshots._blobs, lambda _: fails[0] if fails else None
    )
    async with machine.running(), machine.join():
        await turn_in(machine, "s1", 1, "one")
        fails.append("refused")
        await turn_in(machine, "s1", 2, "two", waits=False)
        with anyio.fail_after(60):
            await machine.commons.begun(W)  # nobody waits for a store that fails
        fails.clear()
        (machine.place / "file").write_text("three, half done")
        machine.commons.changed(W)
    assert await files_at(machine, "s1", 1) == {"file": b"one"}
    assert await files_at(machine, "s1", 2) is None


# The server dies between the end of a turn and its snapshot


async def rested(stage: Stage, lease: Lease) -> int:
    await stage.take_all(lease)
    assert await stage.finish(lease)
    return (await stage.state(lease.session_id)).head


@pytest.mark.parametrize("then", ["nothing", "a message", "a turn of another"])
@pytest.mark.parametrize("by", ["recovery", "a session"])
async def test_a_turn_that_was_not_stored_when_the_server_died_is_stored_as_its_end(
    tmp_path: Path, store: SqliteStore, then: str, by: str
):
    stage = Stage(store)
    sessions = [await stage.session(message(), workspace=W) for _ in range(2)]
    leases = {lease.session_id: lease for lease in await stage.claim("node_a")}
    machine = machine_at(tmp_path / "a", store)
    async with machine.running():
        async with machine.join():
            (machine.place / "file").write_text("before")
        first = [await rested(stage, leases[session]) for session in sessions][1]
        await store.workspaces.take(W, "node_a")
        row = await store.workspaces.find(W)
        assert row is not None
        await store.workspaces.hold(W, row.copy, row.generation)  # as while it is in use
        (machine.place / "file").write_text("of the last turn")
    if then != "nothing":
        await stage.say(sessions[0])
        (lease,) = await stage.claim("node_a")
        if then == "a turn of another":
            await stage.take_all(lease)
    again = machine_at(tmp_path / "a", store)
    async with again.running():
        if by == "recovery":
            (row,) = await store.workspaces.unsynced()
            await again.files._recover(row)
        else:
            async with again.join():
                await again.commons.begun(W)
    found = await files_at(again, sessions[1], first)
    # Once another session was heard of, nobody can tell whose the files are.
    assert found == ({"file": b"of the last turn"} if then == "nothing" else None)
    assert list(await store.workspaces.unsynced()) == []
    newest = list((await look_at_all(again.snapshots, W)).values())[-1]
    assert newest == {"file": b"of the last turn"}


# Forks

OWN = {".claude"}


async def two_trees(machine: Machine) -> Any:
    """A session's home and the workspace, both stored at the end of its turn 7."""
    home = machine.folder / "homes" / HOME
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "log").write_text("remembered")
    (home / ".profile").write_text("of the home")
    async with machine.join(), machine.files.open(HOME, 1):
        machine.files.rested(HOME, 7)
        await turn_in(machine, HOME, 7, "of turn 7")
        (machine.place / "big").write_bytes(b"x" * 3_000_000)
        await turn_in(machine, HOME, 8, "of turn 8")
        await machine.files.begun(HOME)
    mine = await machine.files.snapshot_of(HOME, 7, 7)
    theirs = await machine.files.snapshot_of(W, 7, 7, HOME)
    assert mine is not None
    assert theirs is not None
    return mine, (W, theirs)


async def holds(machine: Machine) -> list[int]:
    return [len((await machine.snapshots.head(name)).holds) for name in (HOME, W)]


async def test_a_fork_has_memory_and_workspace_of_its_turn_and_outlives_both(
    tmp_path: Path, store: SqliteStore
):
    async with machine_at(tmp_path / "a", store).running() as machine:
        mine, theirs = await two_trees(machine)
        async with machine.files.seeding.forked(HOME, mine, "sesn_fork", theirs, OWN):
            pass
        assert await holds(machine) == [1, 1]
        for name in (HOME, W):  # both are deleted, and what nobody needs of them is removed
            await machine.snapshots.delete(name)
            await machine.snapshots.tidy(name)
        fork = machine.folder / "homes" / "sesn_fork"
        fork.mkdir()
        async with machine.files.open("sesn_fork", 2):
            seen = {p.relative_to(fork): p.read_text() for p in fork.rglob("*") if p.is_file()}
            assert seen == {
                Path(".claude/log"): "remembered",
                Path(".profile"): "of the home",
                Path("file"): "of turn 7",
            }
            (fork / "more").write_text("its own")
            machine.files.rested("sesn_fork", 30)
        assert await machine.files.snapshot_of("sesn_fork", 30, 30) is not None
        await machine.snapshots.delete("sesn_fork")
        await machine.snapshots.tidy("sesn_fork")
    blobs = FolderBlobs(tmp_path / "blobs")
    left = sorted(stored.key for stored in await blobs.list("workspaces/"))
    assert left == [f"workspaces/{name}/head" for name in ("sesn_fork", HOME, W)]


async def test_an_archive_has_what_a_fork_would_have_and_writes_nothing(
    tmp_path: Path, store: SqliteStore
):
    async with machine_at(tmp_path / "a", store).running() as machine:
        mine, theirs = await two_trees(machine)
        blobs = FolderBlobs(tmp_path / "blobs")
        before = await blobs.list("workspaces/")
        bench = tmp_path / "bench"
        place = bench / "files"
        tree = LocalTree(place, bench / "notes", UIDS)
        bench.mkdir()
        await machine.files.seeding.put_into(tree, mine, theirs, OWN)
        names = sorted(str(p.relative_to(place)) for p in place.rglob("*"))
        assert names == [".claude", ".claude/log", ".profile", "file"]
        assert await blobs.list("workspaces/") == before


DEATHS = {
    "row": "roost.core.snapshots.snapshots.Snapshots.unite",
    "pack": "roost.core.snapshots.snapshots.Snapshots._store_load",
    "manifest": "roost.core.snapshots.snapshots.Snapshots._store_manifest",
    "head": "roost.core.snapshots.heads.seal",
    "session": "",
}
STEPS = [
    *((step, 1) for step in DEATHS),
    ("head", 2),
    ("head", 3),
]  # of the home, of the other, its own


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_a_server_that_dies_while_a_fork_is_made_leaves_nothing_of_it(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, step: str, times: int
):
    async with machine_at(tmp_path / "a", store).running() as machine:
        mine, theirs = await two_trees(machine)
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="goes down"):
            if DEATHS[step]:
                patched.setattr(DEATHS[step], dying(DEATHS[step], times))
            async with machine.files.seeding.forked(HOME, mine, "sesn_fork", theirs, OWN):
                raise RuntimeError("the machine goes down")
        rows = await store.workspaces.orphans(given_up_after=-1)
        (left,) = [row for row in rows if row.id == "sesn_fork"]
        assert left.state is SyncState.PENDING
        await machine.files._remove(left)
        for name in (HOME, W):
            await machine.snapshots.tidy(name)
        assert await holds(machine) == [0, 0]
        blobs = FolderBlobs(tmp_path / "blobs")
        left_over = [stored.key for stored in await blobs.list("workspaces/sesn_fork/")]
        assert left_over == ["workspaces/sesn_fork/head"]  # the note that it never was


def dying(name: str, times: int) -> Any:
    """As it is, until it is called for the so-manieth time."""
    as_it_is, calls = resolve_name(name), list[int]()

    def die(*args: Any, **fields: Any) -> Any:
        calls.append(1)
        if len(calls) == times:
            raise RuntimeError("the machine goes down")
        return as_it_is(*args, **fields)

    return die
