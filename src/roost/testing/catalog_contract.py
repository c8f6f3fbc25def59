"""The contract of a catalog: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from roost.domain.session import TrustLevel
from roost.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from roost.ports import catalog as ports
from roost.ports.catalog import Catalog, Kind, Record, RecordQuery
from roost.testing.stage import TENANT, Stage
from roost.testing.store_contract import StoreContract


async def _add(
    catalog: Catalog, id: str, kind: Kind = "environment", tenant: str = TENANT, **body: Any
) -> Record:
    return await catalog.add(kind, tenant, id, {"name": id, **body}, unique_name=False)


def _always(body: dict[str, Any]) -> Callable[[Record], dict[str, Any]]:
    return lambda record: body


class CatalogContract(StoreContract):
    """What the API and the core rely on, whichever database is behind it."""

    async def test_a_record_comes_back_as_it_was_added(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        body = {"name": "env", "nested": {"list": [1, 2.5, None, "ü", True]}, "empty": {}}
        added = await catalog.add("environment", TENANT, "env_1", body, unique_name=False)
        assert added.body == body
        assert added.version == 1
        assert added.created_at == added.updated_at
        assert added.archived_at is None
        assert await catalog.get("environment", TENANT, "env_1") == added

    async def test_a_tenant_has_so_many_records_of_a_kind(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalog = stage.store.catalog
        monkeypatch.setattr(ports, "MOST_RECORDS", 2)
        await _add(catalog, "env_1")
        await _add(catalog, "env_2")
        await catalog.archive("environment", TENANT, "env_2")
        with pytest.raises(QuotaExceeded):
            await _add(catalog, "env_3")
        await _add(catalog, "env_3", tenant="tenant_2")
        await _add(catalog, "agent_1", kind="agent")
        with pytest.raises(Conflict):
            await catalog.delete("environment", TENANT, "env_1", expected=2)
        await catalog.delete("environment", TENANT, "env_1", expected=1)
        await _add(catalog, "env_4")

    async def test_a_record_has_so_many_versions(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalog = stage.store.catalog
        monkeypatch.setattr(ports, "MOST_VERSIONS", 2)
        await _add(catalog, "env_1")
        await catalog.change("environment", TENANT, "env_1", _always({"name": "b"}))
        with pytest.raises(QuotaExceeded):
            await catalog.change("environment", TENANT, "env_1", _always({"name": "c"}))
        kept = await catalog.change("environment", TENANT, "env_1", _always({"name": "b"}))
        assert kept.version == 2

    async def test_a_task_keeps_its_newest_versions(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalog = stage.store.catalog
        monkeypatch.setitem(ports.KEPT_VERSIONS, "task", 2)
        await _add(catalog, "task_1", kind="task")
        for number in range(4):
            await catalog.change("task", TENANT, "task_1", _always({"name": str(number)}))
        kept = await catalog.versions("task", TENANT, "task_1", before=None, limit=9)
        assert [record.version for record in kept] == [5, 4]

    async def test_another_tenant_s_record_or_another_kind_looks_like_none(
        self, stage: Stage
    ) -> None:
        catalog = stage.store.catalog
        await _add(catalog, "env_1")
        strangers: list[tuple[Kind, str]] = [("environment", "tenant_2"), ("agent", TENANT)]
        for kind, tenant in strangers:
            with pytest.raises(NotFound):
                await catalog.get(kind, tenant, "env_1")
            with pytest.raises(NotFound):
                await catalog.change(kind, tenant, "env_1", lambda record: {})
            with pytest.raises(NotFound):
                await catalog.archive(kind, tenant, "env_1")
            with pytest.raises(NotFound):
                await catalog.delete(kind, tenant, "env_1")
            with pytest.raises(NotFound):
                await catalog.versions(kind, tenant, "env_1", before=None, limit=10)
            assert await catalog.page(RecordQuery(kind=kind, tenant=tenant)) == []

    async def test_records_of_all_tenants_are_walked_from_the_highest_id_on(
        self, stage: Stage
    ) -> None:
        catalog = stage.store.catalog
        for number in range(5):
            await _add(catalog, f"file_{number}", "file", f"tenant_{number % 2}", n=number)
        await _add(catalog, "skill_9", "skill")
        await catalog.change("file", "tenant_0", "file_2", _always({"n": 22}))
        await catalog.archive("file", "tenant_1", "file_3")
        first = await catalog.every("file", limit=2)
        assert [(each.tenant, each.id) for each in first] == [
            ("tenant_0", "file_4"),
            ("tenant_0", "file_2"),
        ]
        assert first[1].body == {"n": 22}
        rest = await catalog.every("file", before="file_2", limit=9)
        assert [each.id for each in rest] == ["file_1", "file_0"]

    async def test_a_name_is_taken_until_its_record_is_archived(self, stage: Stage) -> None:
        catalog, body = stage.store.catalog, {"name": "same"}
        await catalog.add("environment", TENANT, "env_1", body, unique_name=True)
        with pytest.raises(Conflict, match="there is an environment named"):
            await catalog.add("environment", TENANT, "env_2", body, unique_name=True)
        with pytest.raises(NotFound):
            await catalog.get("environment", TENANT, "env_2")
        await catalog.add("environment", "tenant_2", "env_3", body, unique_name=True)
        await catalog.add("agent", TENANT, "agent_1", body, unique_name=True)
        await catalog.add("environment", TENANT, "env_4", body, unique_name=False)
        await catalog.archive("environment", TENANT, "env_1")
        await catalog.archive("environment", TENANT, "env_4")
        await catalog.add("environment", TENANT, "env_5", body, unique_name=True)

    async def test_a_record_is_not_renamed_to_a_name_that_is_taken(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        for id in ("env_1", "env_2"):
            await catalog.add("environment", TENANT, id, {"name": id}, unique_name=True)

        async def rename(name: str) -> Record:
            return await catalog.change(
                "environment", TENANT, "env_2", lambda record: {"name": name}, unique_name=True
            )

        with pytest.raises(Conflict):
            await rename("env_1")
        assert (await rename("env_2")).version == 1
        assert (await rename("env_3")).body == {"name": "env_3"}

    async def test_a_change_is_a_new_version_and_the_old_ones_stay(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        first = await _add(catalog, "agent_1", "agent", size=1)
        await catalog.change("agent", TENANT, "agent_1", lambda r: {**r.body, "size": 2})
        await catalog.change("agent", TENANT, "agent_1", lambda r: {**r.body, "size": 3})
        newest = await catalog.get("agent", TENANT, "agent_1")
        assert (newest.version, newest.body["size"]) == (3, 3)
        assert newest.created_at == first.created_at
        assert await catalog.get("agent", TENANT, "agent_1", 1) == first
        versions = await catalog.versions("agent", TENANT, "agent_1", before=None, limit=10)
        assert [record.version for record in versions] == [3, 2, 1]
        older = await catalog.versions("agent", TENANT, "agent_1", before=3, limit=1)
        assert [record.version for record in older] == [2]
        for version in (0, 4):
            with pytest.raises(NotFound):
                await catalog.get("agent", TENANT, "agent_1", version)

    async def test_a_record_is_its_makers_and_a_version_has_its_writers_ceiling(
        self, stage: Stage
    ) -> None:
        """The same body again is a new version only if somebody with more trust vouches for it."""
        catalog = stage.store.catalog
        made = await catalog.add(
            "agent", TENANT, "a", {"x": 1}, unique_name=False, created_by="k", ceiling="vault"
        )
        await catalog.add("agent", TENANT, "b", {}, unique_name=False)
        assert (made.created_by, made.ceiling) == ("k", "vault")
        query = RecordQuery(kind="agent", tenant=TENANT, created_by="k")
        assert [record.id for record in await catalog.page(query)] == ["a"]
        steps: list[tuple[TrustLevel | None, int, int, str]] = [
            ("full", 1, 2, "full"),
            ("sandboxed", 1, 2, "full"),
            (None, 2, 3, "full"),
            ("sandboxed", 3, 4, "sandboxed"),
            (None, 3, 4, "sandboxed"),
        ]
        for ceiling, x, version, kept in steps:
            now = await catalog.change("agent", TENANT, "a", _always({"x": x}), ceiling=ceiling)
            assert (now.version, now.ceiling, now.created_by) == (version, kept, "k")
        assert (await catalog.get("agent", TENANT, "a", 1)).ceiling == "vault"
        unknown = await catalog.change("agent", TENANT, "b", lambda _: {}, ceiling="full")
        assert (unknown.version, unknown.ceiling) == (1, None)

    async def test_a_change_that_changes_nothing_is_no_version(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        first = await _add(catalog, "agent_1", "agent")
        same = await catalog.change("agent", TENANT, "agent_1", lambda record: dict(record.body))
        assert same == first
        assert await catalog.get("agent", TENANT, "agent_1") == first

    async def test_a_change_expects_the_version_it_was_made_for(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        await _add(catalog, "agent_1", "agent")
        grown = await catalog.change("agent", TENANT, "agent_1", lambda r: {"a": 1}, expected=1)
        assert grown.version == 2
        with pytest.raises(Conflict):
            await catalog.change("agent", TENANT, "agent_1", lambda r: {"a": 2}, expected=1)
        assert (await catalog.get("agent", TENANT, "agent_1")).body == {"a": 1}

    async def test_a_change_that_refuses_changes_nothing(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        first = await _add(catalog, "agent_1", "agent")

        def refuse(record: Record) -> dict[str, Any]:
            raise InvalidRequest("no")

        with pytest.raises(InvalidRequest):
            await catalog.change("agent", TENANT, "agent_1", refuse)
        assert await catalog.get("agent", TENANT, "agent_1") == first

    async def test_changes_at_once_lose_none(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        await _add(catalog, "agent_1", "agent")

        async def grow(n: int) -> None:
            await catalog.change("agent", TENANT, "agent_1", lambda r: {**r.body, str(n): n})

        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(grow, n)
        newest = await catalog.get("agent", TENANT, "agent_1")
        assert newest.version == 21
        assert len(newest.body) == 21

    async def test_an_archived_record_stays_and_says_so(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        await _add(catalog, "env_1")
        archived = await catalog.archive("environment", TENANT, "env_1")
        assert archived.archived_at == archived.updated_at > archived.created_at
        assert await catalog.archive("environment", TENANT, "env_1") == archived
        assert await catalog.get("environment", TENANT, "env_1") == archived
        shown = RecordQuery(kind="environment", tenant=TENANT)
        assert await catalog.page(shown) == []
        everything = RecordQuery(kind="environment", tenant=TENANT, include_archived=True)
        assert await catalog.page(everything) == [archived]

    async def test_what_a_session_uses_is_not_deleted(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        await _add(catalog, "env_9")
        await _add(catalog, "agent_9", "agent")
        session_id = await stage.session(environment_id="env_9", agent_id="agent_9")
        await stage.store.sessions.archive(TENANT, session_id)
        for kind, id in (("environment", "env_9"), ("agent", "agent_9")):
            with pytest.raises(Conflict):
                await catalog.delete(kind, TENANT, id)
            await catalog.get(kind, TENANT, id)
        await stage.store.sessions.delete(TENANT, session_id)
        await catalog.delete("environment", TENANT, "env_9")
        with pytest.raises(NotFound):
            await catalog.get("environment", TENANT, "env_9")

    async def test_a_record_is_found_by_the_name_it_has_now(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        first = await _add(catalog, "notes", "workspace")
        assert await catalog.named("workspace", TENANT, "notes") == first
        for kind, tenant, name in (
            ("environment", TENANT, "notes"),
            ("workspace", "tenant_2", "notes"),
            ("workspace", TENANT, "Notes"),
        ):
            assert await catalog.named(kind, tenant, name) is None
        renamed = await catalog.change("workspace", TENANT, "notes", lambda r: {"name": "ä €"})
        assert await catalog.named("workspace", TENANT, "notes") is None
        assert await catalog.named("workspace", TENANT, "ä €") == renamed
        await catalog.archive("workspace", TENANT, "notes")
        assert await catalog.named("workspace", TENANT, "ä €") is None

    async def test_a_workspace_with_sessions_is_deleted_only_by_force(self, stage: Stage) -> None:
        catalog, sessions = stage.store.catalog, stage.store.sessions
        used: dict[str, str] = {}
        for id in ("wksp_1", "wksp_2"):
            await _add(catalog, id, "workspace")
            used[id] = await stage.session(workspace=id)
            with pytest.raises(Conflict):
                await catalog.delete("workspace", TENANT, id)
        await catalog.delete("workspace", TENANT, "wksp_1", force=True)
        await sessions.archive(TENANT, used["wksp_2"])
        await catalog.delete("workspace", TENANT, "wksp_2")

    async def test_pages_go_from_the_newest_to_the_oldest(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        records = [await _add(catalog, f"env_{n}") for n in range(5)]
        await _add(catalog, "agent_1", "agent")

        async def page(after: str | None = None, **query: Any) -> list[str]:
            asked = RecordQuery(kind="environment", tenant=TENANT, after=after, **query)
            return [record.id for record in await catalog.page(asked)]

        assert await page() == ["env_4", "env_3", "env_2", "env_1", "env_0"]
        assert await page(limit=2) == ["env_4", "env_3"]
        assert await page("env_3", limit=2) == ["env_2", "env_1"]
        await catalog.delete("environment", TENANT, "env_3")
        assert await page("env_3", limit=2) == ["env_2", "env_1"]
        assert "env_2" in await page(since=records[2].created_at, until=records[2].created_at)
        assert await page(since=records[4].created_at + 1) == []
        assert await page(name=records[1].body["name"]) == ["env_1"]
        assert await page(name="nobody") == []
        with pytest.raises(InvalidRequest):
            await page("env_nowhere")

    async def test_what_is_due_before_a_time_comes_with_what_is_due_for_longest_first(
        self, stage: Stage
    ) -> None:
        catalog = stage.store.catalog
        for id, due_at in {"a": 30, "b": 10, "c": None, "d": 10, "e": 20}.items():
            tenant = TENANT if id < "d" else "tenant_2"
            await catalog.add("task", tenant, id, {}, unique_name=False, due_at=due_at)
        await catalog.add("run", TENANT, "f", {}, unique_name=False, due_at=5)

        async def due(before: int, limit: int = 9) -> list[tuple[str, int | None]]:
            return [(r.id, r.due_at) for r in await catalog.due("task", before, limit=limit)]

        assert await due(10) == []
        assert await due(11) == [("b", 10), ("d", 10)]
        assert await due(30) == [("b", 10), ("d", 10), ("e", 20)]
        assert await due(2**62) == [("b", 10), ("d", 10), ("e", 20), ("a", 30)]
        assert await due(2**62, limit=3) == [("b", 10), ("d", 10), ("e", 20)]
        assert (await catalog.get("task", TENANT, "a")).due_at == 30
        assert (await catalog.get("task", TENANT, "c")).due_at is None

    async def test_a_record_is_due_at_another_time_without_a_new_version(
        self, stage: Stage
    ) -> None:
        catalog = stage.store.catalog
        first = await catalog.add("task", TENANT, "a", {"n": 1}, unique_name=False, due_at=10)

        async def change(n: int, **due: Any) -> Record:
            return await catalog.change("task", TENANT, "a", _always({"n": n}), **due)

        async def due() -> list[str]:
            return [record.id for record in await catalog.due("task", 2**62, limit=9)]

        later = await change(1, due_at=20)
        assert (later.due_at, later.version, later.updated_at) == (20, 1, first.updated_at)
        assert (await change(2)).due_at == 20
        both = await change(3, due_at=30)
        assert (both.due_at, both.version, both.body) == (30, 3, {"n": 3})
        old = await catalog.get("task", TENANT, "a", 1)
        assert (old.due_at, old.body) == (30, {"n": 1})
        assert await due() == ["a"]
        assert (await change(3, due_at=None)).due_at is None
        assert await due() == []
        assert (await change(3, due_at=40)).due_at == 40
        assert await due() == ["a"]

    async def test_a_change_that_is_refused_leaves_when_it_is_due(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        await catalog.add("task", TENANT, "a", {}, unique_name=False, due_at=10)
        with pytest.raises(Conflict):
            await catalog.change("task", TENANT, "a", _always({}), expected=7, due_at=20)
        assert (await catalog.get("task", TENANT, "a")).due_at == 10

    async def test_what_is_archived_or_deleted_is_not_due(self, stage: Stage) -> None:
        catalog = stage.store.catalog
        for id in ("a", "b", "c"):
            await catalog.add("task", TENANT, id, {}, unique_name=False, due_at=10)
        await catalog.archive("task", TENANT, "a")
        await catalog.delete("task", TENANT, "b")
        assert [record.id for record in await catalog.due("task", 11, limit=9)] == ["c"]
