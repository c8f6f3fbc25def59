"""The contract of webhooks: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from roost.domain.ledger import Batch
from roost.domain.session import Pending
from roost.domain.vault import StaticBearer, VaultCredential
from roost.domain.webhook import MOST_WEBHOOKS, Attempt, Delivery, Webhook
from roost.errors import Conflict, NotFound, QuotaExceeded, SessionBusy
from roost.ports.drafts import new_draft
from roost.ports.sessions import Revised
from roost.ports.webhooks import ClaimedDelivery, DeliveryQuery, Webhooks
from roost.testing.stage import TENANT, Stage
from roost.testing.store_contract import StoreContract

_TAKEN = Attempt(status=204)
_DOWN = Attempt(status=503, note="the receiver answered 503", answer="busy")
_MINUTE = 60.0
_NEVER = 10**9


def _new(id: str = "wh_1", *events: str, tenant: str = TENANT, **fields: Any) -> Webhook:
    given: dict[str, Any] = {"url": f"https://{id}.example/hook", "sealed": f"sealed {id}"}
    return Webhook(id=id, tenant=tenant, enabled_events=list(events or "*"), **(given | fields))


async def _sent(stage: Stage, webhook: Webhook) -> list[Delivery]:
    """All that is or was on its way to an endpoint, oldest first."""
    found = await stage.store.webhooks.page(DeliveryQuery(webhook=webhook, limit=1000))
    return list(reversed(found))


async def _types(stage: Stage, webhook: Webhook) -> list[str]:
    return [each.event.type for each in await _sent(stage, webhook)]


async def _claim(rows: Webhooks, **more: Any) -> list[ClaimedDelivery]:
    return await rows.claim(100, _MINUTE, **more)


def _ids(claimed: Sequence[ClaimedDelivery]) -> list[str]:
    return [each.delivery.event.subject for each in claimed]


class WebhooksContract(StoreContract):
    """What webhooks rely on, whichever database is behind them."""

    async def test_an_endpoint_is_found_as_it_was_added(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        given = _new("wh_1", "session.idled", name="é", description="d", created_by="key_1")
        added = await rows.add(given)
        assert added.created_at == added.updated_at > 0
        assert replace(added, created_at=0, updated_at=0) == given
        assert await rows.get(TENANT, "wh_1") == added
        assert await rows.all(TENANT) == [added]
        assert await rows.all("tenant_2") == []
        for which in (("tenant_2", "wh_1"), (TENANT, "wh_2")):
            with pytest.raises(NotFound):
                await rows.get(*which)

    async def test_a_tenant_has_a_bounded_number_of_them(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        for i in range(MOST_WEBHOOKS):
            await rows.add(_new(f"wh_{i:02}"))
        with pytest.raises(QuotaExceeded):
            await rows.add(_new("wh_more"))
        await rows.add(_new("wh_more", tenant="tenant_2"))

    async def test_nothing_is_written_where_nobody_wants_it(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        await stage.idle()
        assert not (await rows.outlook()).enabled
        other = await rows.add(_new("wh_1", "vault.created"))
        foreign = await rows.add(_new("wh_2", tenant="tenant_2"))
        off = await rows.add(_new("wh_3", state="disabled"))
        await stage.idle()
        for webhook in (other, foreign, off):
            assert await _sent(stage, webhook) == []
        outlook = await rows.outlook()
        assert outlook.enabled
        assert outlook.due_in is None

    async def test_what_happens_to_a_session_is_told_in_order(self, stage: Stage) -> None:
        webhook = await stage.store.webhooks.add(_new())
        session_id = await stage.idle()
        told = await _sent(stage, webhook)
        assert [each.event.type for each in told] == [
            "session.created",
            "session.running",
            "session.status_run_started",
            "session.thread_idled",
            "session.idled",
            "session.status_idled",
        ]
        assert {each.event.subject for each in told} == {session_id}
        thread = (await stage.state(session_id)).thread_id
        parents = [each.event.parent for each in told]
        assert parents == ["", "", "", thread, "", ""]
        assert len({each.event.id for each in told}) == len(told)
        assert all(each.event.at == each.due_at > 0 and not each.attempts for each in told)

    async def test_a_session_that_asks_is_changed_archived_and_deleted_is_told_of(
        self, stage: Stage
    ) -> None:
        rows, sessions = stage.store.webhooks, stage.store.sessions
        wanted = ("session.requires_action", "session.updated", "session.archived")
        webhook = await rows.add(_new("wh_1", *wanted, "session.deleted"))
        lease = await stage.running()
        await stage.take_all(lease)
        head = (await stage.state(lease.session_id)).head
        asks = Batch(blocks=[Pending("sevt_1", "custom_tool")])
        reason = {"type": "requires_action", "event_ids": ["sevt_1"]}
        assert await stage.log.finish(lease, head, asks, reason)
        draft = new_draft("session.updated", title="t")
        await sessions.revise(
            TENANT, lease.session_id, lambda s: Revised(replace(s.spec, title="t"), [draft])
        )
        await sessions.archive(TENANT, lease.session_id)
        await sessions.archive(TENANT, lease.session_id)
        await sessions.delete(TENANT, lease.session_id)
        assert await _types(stage, webhook) == [*wanted, "session.deleted"]

    async def test_what_happens_to_records_and_credentials_is_told(self, stage: Stage) -> None:
        store = stage.store
        webhook = await store.webhooks.add(_new())
        catalog = store.catalog
        await catalog.add("agent", TENANT, "agent_1", {"name": "a"}, unique_name=False)
        await catalog.change("agent", TENANT, "agent_1", lambda r: {"name": "b"})
        await catalog.change("agent", TENANT, "agent_1", lambda r: {"name": "b"})
        await catalog.archive("agent", TENANT, "agent_1")
        await catalog.add("task", TENANT, "task_1", {"name": "a"}, unique_name=False)
        body = {"display_name": "v", "metadata": {}}
        await catalog.add("vault", TENANT, "vlt_1", body, unique_name=False)
        auth = StaticBearer(mcp_server_url="https://mcp.example/")
        new = VaultCredential(
            id="vcrd_1", tenant=TENANT, vault_id="vlt_1", auth=auth, sealed="sealed"
        )
        kept = await store.credentials.add(new)
        await store.credentials.change(kept, lambda c, now: replace(c, refresh_failed=True))
        await store.credentials.change(kept, lambda c, now: replace(c, display_name="n"))
        await store.credentials.archive_vault(TENANT, "vlt_1")
        await store.credentials.delete_vault(TENANT, "vlt_1")
        told = [(e.event.type, e.event.parent) for e in await _sent(stage, webhook)]
        assert told == [
            ("agent.created", ""),
            ("agent.updated", ""),
            ("agent.archived", ""),
            ("vault.created", ""),
            ("vault_credential.created", "vlt_1"),
            ("vault_credential.refresh_failed", "vlt_1"),
            ("vault.archived", ""),
            ("vault_credential.archived", "vlt_1"),
            ("vault.deleted", ""),
            ("vault_credential.deleted", "vlt_1"),
        ]

    async def test_a_change_that_is_refused_tells_nothing(self, stage: Stage) -> None:
        webhook = await stage.store.webhooks.add(_new("wh_1", "agent.created", "session.deleted"))
        catalog = stage.store.catalog
        await catalog.add("agent", TENANT, "agent_1", {"name": "a"}, unique_name=True)
        with pytest.raises(Conflict):
            await catalog.add("agent", TENANT, "agent_2", {"name": "a"}, unique_name=True)
        lease = await stage.running()
        with pytest.raises(SessionBusy):
            await stage.store.sessions.delete(TENANT, lease.session_id)
        assert await _types(stage, webhook) == ["agent.created"]

    async def test_one_who_has_a_delivery_has_it_alone_until_the_time_is_over(
        self, stage: Stage
    ) -> None:
        rows = stage.store.webhooks
        await rows.add(_new("wh_1", "session.created"))
        wanted = [await stage.session() for _ in range(3)]
        [first] = await rows.claim(1, _MINUTE)
        rest = await _claim(rows)
        assert _ids([first, *rest]) == wanted
        assert [each.delivery.attempts for each in rest] == [1, 1]
        assert await _claim(rows) == []
        assert 0 < ((await rows.outlook()).due_in or 0) <= _MINUTE
        [again] = await self._after(rows, rest[1:], 0.05)
        assert (again.delivery.event, again.delivery.attempts) == (rest[1].delivery.event, 2)

    async def _after(
        self, rows: Webhooks, claimed: Sequence[ClaimedDelivery], seconds: float
    ) -> list[ClaimedDelivery]:
        """What is claimed once these are due again, after a failure and so long a wait."""
        for each in claimed:
            await rows.ended(each, _DOWN, seconds, _NEVER)
        await anyio.sleep(seconds)
        return await _claim(rows)

    async def test_of_many_who_claim_at_once_one_gets_each(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        await rows.add(_new("wh_1", "session.created"))
        wanted = [await stage.session() for _ in range(20)]
        got: list[str] = []

        async def claim() -> None:
            got.extend(_ids(await rows.claim(3, _MINUTE)))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(claim)
        assert sorted(got) == sorted(wanted)

    async def test_busy_endpoints_are_left_out_of_a_claim(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        for id in ("wh_1", "wh_2"):
            await rows.add(_new(id, "session.created"))
        await stage.session()
        claimed = await _claim(rows, without=["wh_1", "wh_none"])
        assert [each.webhook.id for each in claimed] == ["wh_2"]
        assert [each.webhook.id for each in await _claim(rows)] == ["wh_1"]

    async def test_what_was_taken_is_over_and_what_failed_often_is_given_up(
        self, stage: Stage
    ) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        await stage.session()
        await stage.session()
        good, bad = await _claim(rows)
        assert await rows.ended(bad, _DOWN, None, _NEVER) is None
        assert (await rows.get(TENANT, "wh_1")).failing_since > 0
        assert await rows.ended(good, _TAKEN, 5.0, _NEVER) is None
        assert (await rows.get(TENANT, "wh_1")).failing_since == 0
        taken, failed = await _sent(stage, webhook)
        assert (taken.state, taken.status, taken.due_at) == ("delivered", 204, 0)
        assert (failed.state, failed.status, failed.due_at) == ("failed", 503, 0)
        assert (failed.note, failed.answer) == (_DOWN.note, "busy")
        assert (await rows.outlook()).due_in is None

    async def test_a_late_failure_takes_nothing_back(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        await stage.session()
        [first] = await rows.claim(1, 0.01)
        await anyio.sleep(0.02)
        [second] = await rows.claim(1, _MINUTE)
        await rows.ended(first, _DOWN, 0.0, _NEVER)  # its claim is over: the second one counts
        assert await _claim(rows) == []
        await rows.ended(first, _TAKEN, 0.0, _NEVER)
        await rows.ended(second, _DOWN, 0.0, _NEVER)
        [delivery] = await _sent(stage, webhook)
        assert (delivery.state, delivery.due_at) == ("delivered", 0)

    async def test_a_disabled_endpoint_gets_nothing_and_what_waits_is_held(
        self, stage: Stage
    ) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        for _ in range(3):
            await stage.session()
        [claimed] = await rows.claim(1, _MINUTE)
        gone = Attempt(status=410)
        disabled = await rows.ended(claimed, gone, 5.0, _NEVER)
        assert disabled is not None
        assert disabled == await rows.get(TENANT, "wh_1")
        assert (disabled.state, disabled.disabled_reason) == ("disabled", gone.disables)
        await stage.session()
        assert [each.state for each in await _sent(stage, webhook)] == ["held"] * 3
        assert await _claim(rows) == []
        with pytest.raises(Conflict):
            await rows.replay(webhook, ["held"], 0, None)
        await rows.change(TENANT, "wh_1", lambda w, now: replace(w, state="enabled"))
        assert len(await _claim(rows)) == 3

    async def test_an_endpoint_that_fails_for_too_long_is_disabled(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        await rows.add(_new("wh_1", "session.created"))
        await stage.session()
        [first] = await _claim(rows)
        assert await rows.ended(first, _DOWN, 0.0, patience=0.01) is None
        await anyio.sleep(0.02)
        [second] = await _claim(rows)
        disabled = await rows.ended(second, _DOWN, 0.0, patience=0.01)
        assert disabled is not None
        assert _DOWN.note in disabled.disabled_reason

    async def test_one_is_sent_again_on_request_with_its_id(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        for _ in range(2):
            await stage.session()
        for each in await _claim(rows):
            await rows.ended(each, _DOWN, None, _NEVER)
        old, young = await _sent(stage, webhook)
        assert await rows.replay(webhook, ["failed"], young.event.at, None) == 1
        assert await rows.replay(webhook, ["failed"], 0, old.event.id) == 1
        assert await rows.replay(webhook, ["failed"], 0, None) == 0
        claimed = await _claim(rows)
        assert {each.delivery.event for each in claimed} == {old.event, young.event}
        assert {each.delivery.attempts for each in claimed} == {1}
        with pytest.raises(NotFound):
            await rows.delivery(webhook, "whe_none")

    async def test_a_deleted_endpoint_takes_its_deliveries_with_it(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new())
        await stage.session()
        [claimed] = await _claim(rows)
        await rows.delete(TENANT, "wh_1")
        assert await rows.ended(claimed, _DOWN, 5.0, _NEVER) is None
        assert await rows.ended(claimed, _TAKEN, 5.0, _NEVER) is None
        assert await _sent(stage, webhook) == []
        assert await rows.outlook() == await rows.outlook()
        with pytest.raises(NotFound):
            await rows.delete(TENANT, "wh_1")
        await stage.session()
        assert (await rows.outlook()).due_in is None

    async def test_deliveries_are_listed_by_state_and_page(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        wanted = [await stage.session() for _ in range(5)]
        [first, *_] = await rows.claim(1, _MINUTE)
        await rows.ended(first, _TAKEN, None, _NEVER)
        page = await rows.page(DeliveryQuery(webhook=webhook, limit=2))
        assert [each.event.subject for each in page] == [wanted[4], wanted[3]]
        query = DeliveryQuery(webhook=webhook, before=page[-1].num, limit=9)
        assert [e.event.subject for e in await rows.page(query)] == list(reversed(wanted[:3]))
        done = await rows.page(DeliveryQuery(webhook=webhook, state="delivered"))
        assert [each.event.subject for each in done] == [wanted[0]]
        assert await rows.delivery(webhook, done[0].event.id) == done[0]

    async def test_only_what_is_over_and_old_is_forgotten(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        webhook = await rows.add(_new("wh_1", "session.created"))
        for _ in range(3):
            await stage.session()
        for each in await rows.claim(2, _MINUTE):
            await rows.ended(each, _TAKEN, None, _NEVER)
        old, young, waiting = await _sent(stage, webhook)
        assert await rows.forget(young.event.at, 10) == (old.event.at < young.event.at)
        assert await rows.forget(_NEVER**2, 10) == 1
        assert await _sent(stage, webhook) == [waiting]

    async def test_secrets_are_sealed_anew_unless_they_were_replaced(self, stage: Stage) -> None:
        rows = stage.store.webhooks
        first = await rows.add(_new("wh_1"))
        await rows.add(_new("wh_2", tenant="tenant_2"))
        assert [w.id for w in await rows.every(limit=9)] == ["wh_1", "wh_2"]
        assert [w.id for w in await rows.every(after="wh_1", limit=9)] == ["wh_2"]
        assert await rows.reseal(first, "new")
        assert not await rows.reseal(first, "newer")
        assert (await rows.get(TENANT, "wh_1")).sealed == "new"
