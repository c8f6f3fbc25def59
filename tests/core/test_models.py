"""What is listed as served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from roost.core.records.models import Models
from roost.domain.upstream import Upstream, Upstreams
from roost.errors import NotFound
from roost.ports.models import ListedModel


class Lists:
    def __init__(self, said: Mapping[str, Sequence[str]]) -> None:
        self._said = said

    async def listed(self, name: str) -> Sequence[ListedModel]:
        return [ListedModel(id=each, display_name=f"{name}'s") for each in self._said[name]]


UPSTREAMS = Upstreams(
    [
        Upstream(name="named", api="anthropic", models=["claude-x", "silent-1"]),
        Upstream(name="rest", api="anthropic", models=["claude-*"]),
        Upstream(name="gpt", api="openai", models=["*"]),
    ]
)
SAID = {
    "named": ["claude-x", "claude-y", "else"],
    "rest": ["claude-y", "claude-x", "else", "claude-y"],
    "gpt": ["gpt-9", "claude-x"],
}


async def test_each_model_is_listed_once_as_the_server_that_gets_its_requests_says():
    found = await Models(UPSTREAMS, Lists(SAID)).all()
    assert [(each.id, each.display_name) for each in found] == [
        ("claude-x", "named's"),
        ("silent-1", ""),
        ("claude-y", "rest's"),
        ("gpt-9", "gpt's"),
    ]


async def test_a_model_that_is_not_listed_is_not_found():
    models = Models(UPSTREAMS, Lists(SAID))
    assert (await models.get("gpt-9")).id == "gpt-9"
    with pytest.raises(NotFound, match="else"):
        await models.get("else")
