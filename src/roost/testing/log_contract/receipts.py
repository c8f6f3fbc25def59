"""Sending the same thing again."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.errors import IdempotencyMismatch, QueueFull
from roost.ports.log import Accepted, Receipt
from roost.testing.stage import TENANT, Stage, message, numbers, spec, types
from roost.testing.store_contract import StoreContract


class Receipts(StoreContract):
    """A repetition gets the first answer, and changes nothing."""

    async def test_a_repetition_gets_the_first_answer_and_writes_nothing(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session()
        receipt = Receipt("k1", "f1")
        first = await stage.log.accept(session_id, [message("once")], receipts=[receipt])
        before = await stage.all(session_id)
        again = await stage.log.accept(session_id, [message("once")], receipts=[receipt])
        assert again.entries == first.entries
        assert again.repeated
        assert not again.woke
        assert not first.repeated
        assert await stage.all(session_id) == before

    async def test_another_request_under_a_used_key_is_refused(self, stage: Stage) -> None:
        session_id = await stage.session()
        await stage.log.accept(session_id, [message()], receipts=[Receipt("k1", "f1")])
        before = await stage.all(session_id)
        with pytest.raises(IdempotencyMismatch):
            await stage.log.accept(session_id, [message()], receipts=[Receipt("k1", "f2")])
        with pytest.raises(IdempotencyMismatch):
            receipts = [Receipt("k2", "f2"), Receipt("k1", "f2")]
            await stage.log.accept(session_id, [message(), message()], receipts=receipts)
        assert await stage.all(session_id) == before

    async def test_the_same_request_many_times_at_once_is_one_entry(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        answers: list[Accepted] = []

        async def send() -> None:
            receipts = [Receipt("k1", "f1")]
            answers.append(await stage.log.accept(session_id, [message()], receipts=receipts))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(send)
        assert len([a for a in answers if not a.repeated]) == 1
        assert {a.entries[0].id for a in answers} == {answers[0].entries[0].id}
        assert types(await stage.all(session_id)).count("user.message") == 2

    async def test_what_is_new_in_a_request_is_written_and_the_rest_is_recalled(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session(message())
        [known] = (
            await stage.log.accept(session_id, [message("a")], receipts=[Receipt("a", "fa")])
        ).entries
        drafts = [message("b"), message("a"), message("c")]
        mixed = await stage.log.accept(
            session_id, drafts, receipts=[None, Receipt("a", "fa"), Receipt("c", "fc")]
        )
        assert numbers(mixed.entries) == [5, 4, 6]
        assert mixed.entries[1] == known
        assert not mixed.repeated
        again = await stage.log.accept(session_id, [message("c")], receipts=[Receipt("c", "fc")])
        assert again.entries == mixed.entries[2:]

    async def test_twice_in_one_request_is_one_entry(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        receipts = [Receipt("k", "f"), Receipt("k", "f")]
        accepted = await stage.log.accept(session_id, [message(), message()], receipts=receipts)
        assert numbers(accepted.entries) == [4, 4]
        with pytest.raises(IdempotencyMismatch):
            receipts = [Receipt("new", "f"), Receipt("new", "g")]
            await stage.log.accept(session_id, [message(), message()], receipts=receipts)
        assert (await stage.state(session_id)).head == 4

    async def test_a_key_belongs_to_its_session(self, stage: Stage) -> None:
        one, other = await stage.session(), await stage.session()
        receipt = Receipt("k", "f")
        await stage.log.accept(one, [message()], receipts=[receipt])
        elsewhere = await stage.log.accept(other, [message()], receipts=[receipt])
        assert not elsewhere.repeated

    async def test_a_refused_request_leaves_its_key_unused(self, stage: Stage) -> None:
        session_id = await stage.session(message())
        receipts = [Receipt("k", "f")]
        with pytest.raises(QueueFull):
            await stage.log.accept(session_id, [message()], receipts=receipts, max_queued=1)
        accepted = await stage.log.accept(session_id, [message()], receipts=receipts)
        assert not accepted.repeated

    async def test_a_repetition_is_answered_after_the_session_has_ended(self, stage: Stage) -> None:
        session_id = await stage.session()
        receipts = [Receipt("k", "f")]
        await stage.log.accept(session_id, [message()], receipts=receipts)
        [lease] = await stage.claim()
        await stage.take_all(lease)
        assert await stage.finish(lease)
        await stage.store.sessions.archive(TENANT, session_id)
        assert (await stage.log.accept(session_id, [message()], receipts=receipts)).repeated

    async def test_creating_again_under_a_key_gives_the_session_made_first(
        self, stage: Stage
    ) -> None:
        sessions, receipt = stage.store.sessions, Receipt("k", "f")
        first = await sessions.create(TENANT, "sesn_1", spec(), [message()], receipt=receipt)
        again = await sessions.create(TENANT, "sesn_2", spec(), [message()], receipt=receipt)
        assert again.id == first.id == "sesn_1"
        assert (await stage.state("sesn_1")).head == 3
        with pytest.raises(IdempotencyMismatch):
            await sessions.create(TENANT, "sesn_3", spec(), receipt=Receipt("k", "g"))
        elsewhere = await sessions.create("tenant_2", "sesn_4", spec(), receipt=receipt)
        assert elsewhere.id == "sesn_4"
