"""The contract of marks: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from roost.testing.stage import Stage
from roost.testing.store_contract import StoreContract


class MarksContract(StoreContract):
    """What streams without a cursor rely on, whichever database is behind them."""

    async def test_a_mark_only_grows_and_is_a_session_s_own(self, stage: Stage) -> None:
        marks = stage.store.marks
        assert await marks.up_to("sesn_1") == 0
        for seq in (3, 7, 5):
            await marks.note("sesn_1", seq)
        assert await marks.up_to("sesn_1") == 7
        assert await marks.up_to("sesn_2") == 0
