"""Inputs that are looked at before they are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.node import node

from roost.domain.events import Draft
from roost.errors import WrongInput
from roost.ports.drafts import new_draft
from roost.testing.stage import Stage, allow


def allow_with(tool_use_id: str, **given: object) -> Draft:
    fields = {"tool_use_id": tool_use_id, "result": "allow", "modified_input": given}
    return new_draft("user.tool_confirmation", **fields)


async def test_a_permission_needs_no_input_and_one_that_the_tool_cannot_take_is_refused(
    tmp_path: Path,
):
    async with node(tmp_path, working=False) as roost:
        stage = Stage(roost.store)
        session = await stage.asking("sevt_a", "sevt_b")
        for wrong in ({}, {"command": ["ls"]}):
            with pytest.raises(WrongInput):
                await roost.intake.accept(session, [allow_with("sevt_a", **wrong)])
        assert len((await stage.state(session)).pending) == 2
        await roost.intake.accept(session, [allow("sevt_a")])
        await roost.intake.accept(session, [allow_with("sevt_b", command="ls")])
        assert (await stage.state(session)).pending == ()
