"""The contract of workspaces' rows: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import pytest
from msgspec.structs import replace

from roost.domain.sync import SyncState
from roost.errors import FilesElsewhere, LeaseLost
from roost.testing.stage import TENANT, Stage, message
from roost.testing.store_contract import StoreContract


class WorkspacesContract(StoreContract):
    """What syncing relies on, whichever database is behind it."""

    async def test_what_was_never_held_is_not_found(self, stage: Stage) -> None:
        assert await stage.store.workspaces.find("w") is None
        assert list(await stage.store.workspaces.unsynced()) == []

    async def test_a_held_workspace_is_pending_until_it_is_noted_as_stored(
        self, stage: Stage
    ) -> None:
        rows = stage.store.workspaces
        held = await rows.hold("w", "copy_1", 3)
        assert (held.copy, held.generation, held.state) == ("copy_1", 3, SyncState.PENDING)
        assert held.updated_at > 0
        assert list(await rows.unsynced()) == [held]
        stored = await rows.note(replace(held, state=SyncState.IDLE, sequence=7))
        assert await rows.find("w") == stored
        assert stored.sequence == 7
        assert list(await rows.unsynced()) == []
        assert (await rows.hold("w", "copy_1", 4)).sequence == 7

    async def test_rows_that_name_a_snapshot_are_shown_in_pages(self, stage: Stage) -> None:
        rows = stage.store.workspaces
        await rows.hold("sesn_0", "copy_1", 1)
        for number in range(1, 6):
            held = await rows.hold(f"sesn_{number}", "copy_1", 1)
            await rows.note(replace(held, sequence=number))
        first = await rows.stored(limit=3)
        assert [row.id for row in first] == ["sesn_5", "sesn_4", "sesn_3"]
        rest = await rows.stored(before=first[-1].id, limit=3)
        assert [row.id for row in rest] == ["sesn_2", "sesn_1"]

    async def test_how_storing_failed_is_kept(self, stage: Stage) -> None:
        rows = stage.store.workspaces
        held = await rows.hold("w", "copy_1", 1)
        failed = replace(held, state=SyncState.ERROR, attempts=4, error="500 ä€")
        assert await rows.note(failed) == await rows.find("w")
        (found,) = await rows.unsynced()
        assert (found.state, found.attempts, found.error) == (SyncState.ERROR, 4, "500 ä€")

    async def test_what_the_workspaces_of_a_tenant_take_is_summed(self, stage: Stage) -> None:
        rows = stage.store.workspaces
        mine = [await stage.session() for _ in range(3)]
        other = await stage.session(tenant="tenant_2")
        for number, session_id in enumerate((*mine, other)):
            held = await rows.hold(session_id, "copy_1", 1)
            await rows.note(replace(held, sequence=1), weight=10**number)
        assert await rows.tenant_of(other) == "tenant_2"
        assert (await rows.weight(TENANT), await rows.weight("tenant_2")) == (111, 1000)
        await rows.hold(mine[2], "copy_2", 2)
        await rows.note(replace(await rows.hold(mine[1], "copy_1", 2), attempts=1))
        assert await rows.weight(TENANT) == 111, "whoever holds it does not make it lighter"
        await rows.weigh(mine[2], 5)
        await rows.weigh("sesn_never", 7)
        assert await rows.weight(TENANT) == 16
        assert await rows.weight("tenant_3") == 0

    async def test_the_weight_of_a_deleted_session_counts_until_its_row_is_forgotten(
        self, stage: Stage
    ) -> None:
        rows, session_id = stage.store.workspaces, await stage.session()
        held = await rows.hold(session_id, "copy_1", 1)
        await rows.note(replace(held, state=SyncState.IDLE), weight=10)
        await stage.store.sessions.delete(TENANT, session_id)
        assert await rows.tenant_of(session_id) == ""
        await rows.weigh(session_id, 4 << 40)
        assert await rows.weight(TENANT) == 4 << 40
        await rows.forget(session_id)
        assert await rows.weight(TENANT) == 0

    async def test_what_has_snapshots_and_was_never_weighed_is_found_until_it_is(
        self, stage: Stage
    ) -> None:
        rows = stage.store.workspaces
        for name, sequence in (("w1", 0), ("w2", 3), ("w3", 1)):
            await rows.note(replace(await rows.hold(name, "copy_1", 1), sequence=sequence))
        assert [row.id for row in await rows.unweighed()] == ["w2", "w3"]
        await rows.weigh("w2", 7)
        assert [row.id for row in await rows.unweighed()] == ["w3"]

    async def test_a_named_workspace_weighs_for_its_tenant(self, stage: Stage) -> None:
        rows, catalog = stage.store.workspaces, stage.store.catalog
        await catalog.add("workspace", TENANT, "wksp_1", {"name": "notes"}, unique_name=True)
        await rows.weigh("wksp_1", 3)
        assert await rows.weight(TENANT) == 0, "it has no row yet"
        await rows.hold("wksp_1", "copy_1", 1)
        await rows.weigh("wksp_1", 3)
        assert (await rows.tenant_of("wksp_1"), await rows.weight(TENANT)) == (TENANT, 3)

    async def test_an_older_generation_is_refused(self, stage: Stage) -> None:
        rows = stage.store.workspaces
        old = await rows.hold("w", "copy_1", 1)
        new = await rows.hold("w", "copy_2", 2)
        with pytest.raises(LeaseLost):
            await rows.hold("w", "copy_1", 1)
        with pytest.raises(LeaseLost):
            await rows.note(replace(old, state=SyncState.IDLE))
        assert await rows.find("w") == new

    async def test_a_forgotten_workspace_is_not_found(self, stage: Stage) -> None:
        rows = stage.store.workspaces
        held = await rows.hold("w", "copy_1", 1)
        other = await rows.hold("x", "copy_2", 1)
        await rows.forget("w")
        await rows.forget("w")
        assert await rows.find("w") is None
        with pytest.raises(LeaseLost):
            await rows.note(held)
        assert list(await rows.unsynced()) == [other]

    async def test_a_row_outlives_its_session_as_an_orphan_once_nobody_uses_it(
        self, stage: Stage
    ) -> None:
        rows, session_id = stage.store.workspaces, await stage.session()
        held = await rows.hold(session_id, "copy_1", 1)
        idle = await rows.note(replace(held, state=SyncState.IDLE))
        assert list(await rows.orphans()) == []
        await stage.store.sessions.delete(TENANT, session_id)
        assert list(await rows.orphans()) == [idle]
        await rows.hold(session_id, "copy_1", 2)
        assert list(await rows.orphans()) == []

    async def test_a_row_that_was_made_for_a_fork_is_an_orphan_after_a_while(
        self, stage: Stage
    ) -> None:
        rows = stage.store.workspaces
        made = await rows.hold(await stage.session(), "", 0)
        left = await rows.hold("sesn_never_made", "", 0)
        assert list(await rows.orphans()) == []
        assert list(await rows.orphans(given_up_after=-1)) == [left]
        assert await rows.find(made.id) == made

    async def test_a_stranger_has_neither_a_row_nor_a_session(self, stage: Stage) -> None:
        rows, session_id = stage.store.workspaces, await stage.session()
        await rows.hold("held", "copy_1", 1)
        asked = ["held", session_id, "gone", "never"]
        assert sorted(await rows.strangers(asked)) == ["gone", "never"]
        assert list(await rows.strangers([])) == []

    async def test_one_node_at_a_time_has_a_workspace_until_it_leaves_or_dies(
        self, stage: Stage
    ) -> None:
        rows, log = stage.store.workspaces, stage.log
        for node in ("node_a", "node_b"):
            await log.renew(node, 60)
        first = await rows.take("w", "node_a")
        assert (first.holder, first.generation, first.state) == ("node_a", 1, SyncState.IDLE)
        assert await rows.take("w", "node_a") == first
        with pytest.raises(FilesElsewhere):
            await rows.take("w", "node_b")
        await rows.leave("w", "node_b")
        held = await rows.hold("w", "copy_1", first.generation)
        assert held.holder == "node_a"
        assert (await rows.note(replace(held, state=SyncState.IDLE, sequence=3))).holder == "node_a"
        await rows.leave("w", "node_a")
        second = await rows.take("w", "node_b")
        assert (second.holder, second.generation, second.sequence) == ("node_b", 2, 3)
        with pytest.raises(LeaseLost):
            await rows.hold("w", "copy_2", first.generation)
        await log.renew("node_b", 0)
        assert (await rows.take("w", "node_a")).generation == 3

    async def test_a_named_workspace_is_an_orphan_once_its_record_is_gone(
        self, stage: Stage
    ) -> None:
        rows, catalog = stage.store.workspaces, stage.store.catalog
        await catalog.add("workspace", TENANT, "wksp_1", {}, unique_name=False)
        taken = await rows.take("wksp_1", "node_a")
        await rows.leave("wksp_1", "node_a")
        await rows.hold(await stage.session(), "copy_1", 1)  # has no name
        assert list(await rows.orphans()) == []
        assert list(await rows.named()) == [(TENANT, replace(taken, holder=""))]
        await catalog.delete("workspace", TENANT, "wksp_1")
        assert [row.id for row in await rows.orphans()] == [taken.id]
        assert list(await rows.named()) == []

    async def test_the_sessions_of_a_workspace_that_were_heard_of_last_say_where_they_rest(
        self, stage: Stage
    ) -> None:
        rows = stage.store.workspaces
        await stage.store.catalog.add("workspace", TENANT, "wksp_1", {}, unique_name=False)
        assert list(await rows.latest("wksp_1")) == []
        await stage.session(message())  # works elsewhere
        silent, first, second = [await stage.session(workspace="wksp_1") for _ in range(3)]
        for session_id in (first, second, first):
            await stage.say(session_id)
            (lease,) = [one for one in await stage.claim() if one.session_id == session_id]
            await stage.take_all(lease)
            assert await stage.finish(lease)
        rested = (await stage.state(first)).head
        last, before = await rows.latest("wksp_1")
        assert (last.session_id, last.turned, before.session_id) == (first, rested, second)
        end = (await stage.all(first))[-1]
        assert end.at == last.at >= before.at
        await stage.say(second)
        (lease,) = await stage.claim()
        await stage.take_all(lease)
        assert [heard.turned for heard in await rows.latest("wksp_1")] == [0, rested]
        assert silent not in {heard.session_id for heard in await rows.latest("wksp_1")}

    async def test_turns_in_a_workspace_go_one_at_a_time_in_the_order_of_arrival(
        self, stage: Stage
    ) -> None:
        rows = stage.store.workspaces
        a, b, c = [await stage.session(message()) for _ in range(3)]
        assert await rows.enter("w", b, 20)
        assert not await rows.enter("w", c, 30)
        assert not await rows.enter("w", a, 10)
        assert await rows.enter("w", b, 20)
        assert await rows.enter("v", await stage.session(message()), 99)
        await rows.exit(b)
        assert not await rows.enter("w", c, 30)
        assert await rows.enter("w", a, 10)
        assert not await rows.enter("w", b, 40)
        await rows.exit(a)
        assert not await rows.enter("w", b, 40)
        assert await rows.enter("w", c, 1_000)

    async def test_a_session_that_has_no_work_holds_up_nobody(self, stage: Stage) -> None:
        """Its runner died after it came to rest, or while it waited; or it was deleted."""
        rows = stage.store.workspaces
        lease = await stage.running()
        await stage.take_all(lease)
        other = await stage.session(message())
        assert await rows.enter("w", lease.session_id, 1)
        assert not await rows.enter("w", other, 2)
        assert await stage.finish(lease)
        assert await rows.enter("w", other, 2)
        await stage.store.sessions.delete(TENANT, lease.session_id)
        assert await rows.enter("w", other, 2)
