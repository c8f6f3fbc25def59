"""The contract of sessions as records: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest
from msgspec.structs import replace

from roost.domain.events import Draft
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Session, Status
from roost.errors import (
    Conflict,
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    RoostError,
    SessionBusy,
)
from roost.ids import mint
from roost.ports import sessions as ports
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery, Receipt
from roost.ports.sessions import Revised, SessionQuery
from roost.testing.stage import (
    END_TURN,
    TENANT,
    Stage,
    allow,
    answer,
    message,
    numbers,
    spec,
    types,
)
from roost.testing.store_contract import StoreContract


def _retitled(title: str) -> Draft:
    return new_draft("session.updated", title=title)


class SessionsContract(StoreContract):
    """What the API and the core rely on, whichever database is behind it."""

    async def test_a_session_comes_back_as_it_was_made(self, stage: Stage) -> None:
        wanted = spec(
            title="try",
            metadata={"a": "b"},
            resources=[{"type": "file", "file_id": "file_1"}],
            trust_level="vault",
            workspace="wksp_1",
            sandbox="host",
            sandbox_fallback="vault",
            sdk_session_id="a name",
        )
        await stage.store.catalog.add("workspace", TENANT, "wksp_1", {}, unique_name=False)
        made = await stage.store.sessions.create(TENANT, "sesn_1", wanted)
        found = await stage.store.sessions.get(TENANT, "sesn_1")
        assert found.spec == made.spec == wanted
        assert found.state == made.state
        assert (found.id, found.tenant) == ("sesn_1", TENANT)
        assert found.created_at == found.updated_at == made.created_at
        assert found.state.status is Status.IDLE
        assert found.state.agent_name == "helper"
        assert found.state.trust_level == "vault"
        assert found.state.thread_id.startswith("sthr_")

    async def test_what_a_store_knows_without_looking_is_what_is_committed(
        self, stage: Stage
    ) -> None:
        sessions, session_id = stage.store.sessions, await stage.session()
        for text in ("one", "two", "three"):
            await sessions.get(TENANT, session_id)
            known = sessions.known(TENANT, session_id)
            assert known is None or known.state == (await sessions.get(TENANT, session_id)).state
            await stage.say(session_id, text)
        await sessions.get(TENANT, session_id)
        assert sessions.known("tenant_2", session_id) is None
        assert sessions.known(TENANT, "sesn_none") is None

    async def test_another_tenant_s_session_looks_like_none(self, stage: Stage) -> None:
        sessions, session_id = stage.store.sessions, await stage.session()
        with pytest.raises(NotFound):
            await sessions.get("tenant_2", session_id)
        with pytest.raises(NotFound):
            await sessions.archive("tenant_2", session_id)
        with pytest.raises(NotFound):
            await sessions.delete("tenant_2", session_id)
        with pytest.raises(NotFound):
            await sessions.revise("tenant_2", session_id, lambda s: Revised(s.spec))
        assert await sessions.page(SessionQuery(tenant="tenant_2")) == []
        assert (await sessions.find(session_id)).tenant == TENANT

    async def test_a_session_that_is_not_there_is_not_found(self, stage: Stage) -> None:
        with pytest.raises(NotFound):
            await stage.store.sessions.get(TENANT, "sesn_nowhere")
        with pytest.raises(NotFound):
            await stage.store.sessions.find("sesn_nowhere")
        with pytest.raises(NotFound):
            await stage.store.sessions.with_inputs("sesn_nowhere")

    async def test_a_quota_counts_what_is_not_archived(self, stage: Stage) -> None:
        sessions = stage.store.sessions
        made = [await stage.session() for _ in range(3)]
        await stage.session(tenant="tenant_2")
        with pytest.raises(QuotaExceeded):
            await sessions.create(TENANT, "sesn_4", spec(), max_sessions=3)
        with pytest.raises(NotFound):
            await sessions.find("sesn_4")
        await sessions.archive(TENANT, made[0])
        await sessions.create(TENANT, "sesn_4", spec(), max_sessions=3)

    async def test_archived_sessions_have_a_bound_too(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ports, "MOST_KEPT", 2)
        sessions = stage.store.sessions
        made = [await stage.session() for _ in range(2)]
        for session_id in made:
            await sessions.archive(TENANT, session_id)
        with pytest.raises(QuotaExceeded, match="archived"):
            await sessions.create(TENANT, "sesn_3", spec(), max_sessions=3)
        await sessions.delete(TENANT, made[0])
        await sessions.create(TENANT, "sesn_3", spec(), max_sessions=3)

    async def test_a_quota_holds_for_sessions_made_at_once(self, stage: Stage) -> None:
        refused = 0

        async def make() -> None:
            nonlocal refused
            try:
                await stage.store.sessions.create(TENANT, mint("sesn"), spec(), max_sessions=5)
            except QuotaExceeded:
                refused += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(make)
        assert refused == 15
        assert len(await stage.store.sessions.page(SessionQuery(tenant=TENANT))) == 5

    async def test_a_revision_changes_the_spec_and_says_so_in_the_log(self, stage: Stage) -> None:
        session_id = await stage.idle()
        head = (await stage.state(session_id)).head

        def retitle(session: Session) -> Revised:
            assert session.state.head == head
            return Revised(replace(session.spec, title="new"), [_retitled("new")])

        revised = await stage.store.sessions.revise(TENANT, session_id, retitle)
        assert revised.spec.title == "new"
        assert revised.state.head == head + 1
        assert (await stage.look(session_id)).spec == revised.spec
        assert types(await stage.log.read(session_id, head, 10)) == ["session.updated"]
        assert await stage.claim() == []

    async def test_a_revision_may_wake_a_session_that_had_to_leave_its_turn(
        self, stage: Stage
    ) -> None:
        def wake(session: Session) -> Revised:
            return Revised(session.spec, [_retitled("new")], wakes=True)

        lease = await stage.running(message())
        session_id = lease.session_id
        (waits,) = await stage.log.inputs(session_id)
        await stage.log.append(lease, Batch(takes=[waits], turn=TurnMark.BEGIN))
        await stage.finish(lease, turn=TurnMark.SUSPEND)
        at = (await stage.state(session_id)).head
        revised = await stage.store.sessions.revise(TENANT, session_id, wake)
        assert revised.state.status is Status.RUNNING
        assert types(await stage.log.read(session_id, at, 10)) == [
            "session.updated",
            "session.status_running",
            "session.thread_status_running",
        ]
        (again,) = await stage.claim()
        assert again.session_id == session_id
        assert (await stage.state(session_id)).turn == (waits.seq,)

        at_rest = await stage.store.sessions.revise(TENANT, await stage.idle(), wake)
        assert at_rest.state.status is Status.IDLE, "there is nothing to go on with"

    async def test_a_revision_that_refuses_changes_nothing(self, stage: Stage) -> None:
        session_id = await stage.session()

        def refuse(session: Session) -> Revised:
            raise Forbidden("not this one")

        with pytest.raises(Forbidden):
            await stage.store.sessions.revise(TENANT, session_id, refuse)
        assert await stage.all(session_id) == []

    async def test_a_revision_that_changes_nothing_leaves_no_trace(self, stage: Stage) -> None:
        before = await stage.look(await stage.session())
        await stage.store.sessions.revise(TENANT, before.id, lambda s: Revised(s.spec))
        assert (await stage.look(before.id)).updated_at == before.updated_at

    async def test_a_revision_that_no_event_tells_of_is_refused(self, stage: Stage) -> None:
        before = await stage.look(await stage.session())
        with pytest.raises(RoostError, match="without an event"):
            await stage.store.sessions.revise(
                TENANT, before.id, lambda s: Revised(replace(s.spec, title="new"))
            )
        assert (await stage.look(before.id)).spec == before.spec

    async def test_revisions_at_once_lose_none(self, stage: Stage) -> None:
        session_id = await stage.session()

        async def add(n: int) -> None:
            def revision(session: Session) -> Revised:
                metadata = {**session.spec.metadata, str(n): "x"}
                return Revised(replace(session.spec, metadata=metadata), [_retitled(str(n))])

            await stage.store.sessions.revise(TENANT, session_id, revision)

        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(add, n)
        session = await stage.look(session_id)
        assert set(session.spec.metadata) == {str(n) for n in range(20)}
        assert session.state.head == 20

    async def test_an_archived_session_is_ended_but_readable(self, stage: Stage) -> None:
        session_id = await stage.idle()
        archived = await stage.store.sessions.archive(TENANT, session_id)
        assert archived.state.status is Status.TERMINATED
        assert archived.state.archived_at == archived.updated_at
        log = await stage.all(session_id)
        assert log[-1].type == "session.status_terminated"
        again = await stage.store.sessions.archive(TENANT, session_id)
        assert again.state == archived.state
        assert again.updated_at == archived.updated_at
        assert await stage.all(session_id) == log

    async def test_a_running_session_is_neither_archived_nor_deleted(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        with pytest.raises(SessionBusy):
            await stage.store.sessions.archive(TENANT, session_id)
        with pytest.raises(SessionBusy):
            await stage.store.sessions.delete(TENANT, session_id)
        assert (await stage.state(session_id)).status is Status.RUNNING

    async def test_a_deleted_session_is_gone_with_its_log(self, stage: Stage) -> None:
        session_id, other = await stage.idle(), await stage.idle()
        await stage.store.sessions.delete(TENANT, session_id)
        with pytest.raises(NotFound):
            await stage.store.sessions.get(TENANT, session_id)
        with pytest.raises(NotFound):
            await stage.store.sessions.delete(TENANT, session_id)
        with pytest.raises(NotFound):
            await stage.say(session_id)
        assert await stage.all(session_id) == []
        assert await stage.log.page(session_id, EventQuery()) == []
        assert await stage.log.inputs(session_id) == []
        listed = await stage.store.sessions.page(SessionQuery(tenant=TENANT))
        assert [session.id for session in listed] == [other]
        assert numbers(await stage.all(other)) == [1, 2, 3, 4, 5, 6, 7]

    async def test_deleting_a_long_log_holds_nobody_up(self, stage: Stage) -> None:
        """What else the machine has to do may hold somebody up, but hardly three times."""
        longest = await self._longest_wait(stage)
        for _ in range(2):
            if longest >= 0.5:
                longest = await self._longest_wait(stage)
        assert longest < 0.5

    async def _longest_wait(self, stage: Stage) -> float:
        lease = await stage.running()
        [*_, last] = await stage.take_all(lease)
        for _ in range(50):
            [*_, last] = await stage.log.append(lease, Batch(drafts=[answer()] * 2_000))
        assert await stage.log.finish(lease, last.seq, Batch(), END_TURN)
        other = await stage.session(message())
        waits = []
        with anyio.fail_after(60):
            await stage.store.sessions.delete(TENANT, lease.session_id)
            for _ in range(100):
                start = anyio.current_time()
                await stage.say(other)
                waits.append(anyio.current_time() - start)
        assert await stage.all(lease.session_id) == []
        await stage.log.accept(other, [new_draft("user.interrupt")])  # nothing is left to claim
        return max(waits)

    async def test_a_deleted_session_is_not_made_again_by_a_repeated_request(
        self, stage: Stage
    ) -> None:
        sessions, receipt = stage.store.sessions, Receipt("k", "f")
        await sessions.create(TENANT, "sesn_1", spec(), receipt=receipt)
        await sessions.delete(TENANT, "sesn_1")
        with pytest.raises(NotFound):
            await sessions.create(TENANT, "sesn_2", spec(), receipt=receipt)

    async def test_a_session_is_found_by_the_receipt_it_was_made_under(self, stage: Stage) -> None:
        sessions, receipt = stage.store.sessions, Receipt("k", "f")
        assert await sessions.made(TENANT, receipt) is None
        await sessions.create(TENANT, "sesn_1", spec(), receipt=receipt)
        found = await sessions.made(TENANT, receipt)
        assert found is not None
        assert found.id == "sesn_1"
        assert await sessions.made("tenant_2", receipt) is None
        with pytest.raises(IdempotencyMismatch):
            await sessions.made(TENANT, Receipt("k", "another"))

    async def _listed(self, stage: Stage, **query: object) -> list[str]:
        sessions = await stage.store.sessions.page(
            SessionQuery(tenant=TENANT, **query)  # type: ignore[arg-type]
        )
        return [session.id for session in sessions]

    async def test_pages_go_through_all_sessions_in_the_order_they_were_made(
        self, stage: Stage
    ) -> None:
        made = [await stage.session() for _ in range(7)]
        assert await self._listed(stage) == made[::-1]
        assert await self._listed(stage, order="asc") == made
        first = await self._listed(stage, limit=3)
        second = await self._listed(stage, limit=3, after=first[-1])
        third = await self._listed(stage, limit=3, after=second[-1])
        assert first + second + third == made[::-1]
        assert await self._listed(stage, limit=3, after=third[-1]) == []
        assert await self._listed(stage, limit=3, after=third[0], reverse=True) == second
        assert (
            await self._listed(stage, limit=2, after=made[4], order="asc", reverse=True)
            == (made[2:4])
        )

    async def test_a_listing_of_those_that_wait_shows_no_others(self, stage: Stage) -> None:
        asking = await stage.asking("sevt_1", "sevt_2")
        await stage.idle()
        named = {**spec().agent, "name": '"pending":[{'}  # what a person wrote is no state
        await stage.store.sessions.create(TENANT, "sesn_named", replace(spec(), agent=named))
        assert await self._listed(stage, waiting=True) == [asking]
        for call in ("sevt_1", "sevt_2"):
            assert await self._listed(stage, waiting=True) == [asking]
            await stage.log.accept(asking, [allow(call)])
        assert await self._listed(stage, waiting=True) == []
        await stage.claim()
        asking_too = await stage.asking("sevt_3")
        await stage.store.sessions.archive(TENANT, asking_too)
        assert await self._listed(stage, waiting=True) == []

    async def test_a_listing_goes_on_after_a_session_that_was_deleted(self, stage: Stage) -> None:
        made = [await stage.session() for _ in range(5)]
        first = await self._listed(stage, limit=2)
        for session_id in first:
            await stage.store.sessions.delete(TENANT, session_id)
        assert await self._listed(stage, limit=2, after=first[-1]) == [made[2], made[1]]

    async def test_a_listing_cannot_go_on_after_what_never_was(self, stage: Stage) -> None:
        await stage.session()
        foreign = await stage.session(tenant="tenant_2")
        for stranger in ("sesn_nowhere", foreign):
            with pytest.raises(InvalidRequest):
                await self._listed(stage, after=stranger)

    async def test_a_listing_shows_what_was_asked_for(self, stage: Stage) -> None:
        plain = await stage.session()
        busy = await stage.session(message())
        other = await stage.session(agent_id="agent_2", environment_id="env_2")
        done = await stage.session()
        await stage.store.sessions.archive(TENANT, done)
        assert await self._listed(stage) == [other, busy, plain]
        assert await self._listed(stage, include_archived=True) == [done, other, busy, plain]
        assert await self._listed(stage, statuses=["running"]) == [busy]
        assert await self._listed(stage, statuses=["idle", "running"]) == [other, busy, plain]
        assert await self._listed(stage, agent_id="agent_2") == [other]
        assert await self._listed(stage, agent_id="agent_1", agent_version=2) == []
        assert await self._listed(stage, environment_id="env_2") == [other]

    async def test_a_session_is_made_only_in_a_workspace_that_its_tenant_has(
        self, stage: Stage
    ) -> None:
        store, body = stage.store, {"name": "notes"}
        await store.catalog.add("workspace", TENANT, "wksp_1", body, unique_name=True)
        with pytest.raises(NotFound):
            await stage.session(workspace="wksp_2")
        with pytest.raises(NotFound):
            await stage.session(workspace="wksp_1", tenant="tenant_2")
        await stage.session()
        inside = await stage.session(workspace="wksp_1")
        assert await self._listed(stage, workspace="wksp_1") == [inside]
        assert (await stage.look(inside)).spec.workspace == "wksp_1"

    async def test_a_workspace_is_not_deleted_while_a_session_is_being_made_in_it(
        self, stage: Stage
    ) -> None:
        """Whichever comes first: never a session whose workspace was gone when it was made."""
        store = stage.store
        for number in range(10):
            workspace = f"wksp_{number}"
            await store.catalog.add("workspace", TENANT, workspace, {}, unique_name=False)
            done: list[str] = []

            async def join(workspace: str = workspace, done: list[str] = done) -> None:
                with suppress(NotFound):
                    await stage.session(workspace=workspace)
                    done.append("joined")

            async def delete(workspace: str = workspace, done: list[str] = done) -> None:
                with suppress(Conflict):
                    await store.catalog.delete("workspace", TENANT, workspace)
                    done.append("deleted")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(join)
                tasks.start_soon(delete)
            assert len(done) == 1

    async def test_a_listing_of_a_span_of_time_has_both_its_ends(self, stage: Stage) -> None:
        made = [await stage.session() for _ in range(5)]
        moments = [(await stage.look(session_id)).created_at for session_id in made]
        within = [made[n] for n in range(5) if moments[1] <= moments[n] <= moments[3]]
        assert await self._listed(stage, since=moments[1], until=moments[3]) == within[::-1]
        assert await self._listed(stage, since=moments[4] + 1) == []
