"""The models that agents can be made with: what the operator's servers have, and the operator names."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from roost.domain.upstream import Upstream, Upstreams
from roost.errors import NotFound
from roost.ports.models import ListedModel, ModelLists


class Models:
    """All models that are served here, each once: those of the first server that serves it."""

    def __init__(self, upstreams: Upstreams, lists: ModelLists) -> None:
        self._upstreams = upstreams
        self._lists = lists

    async def all(self) -> list[ListedModel]:
        """In the operator's order of servers, and in each server's own order."""
        said: dict[str, Sequence[ListedModel]] = {}

        async def ask(name: str) -> None:
            said[name] = await self._lists.listed(name)

        async with anyio.create_task_group() as tasks:
            for upstream in self._upstreams:
                tasks.start_soon(ask, upstream.name)
        found: dict[str, ListedModel] = {}
        for upstream in self._upstreams:
            for model in self._served(upstream, said[upstream.name]):
                found.setdefault(model.id, model)
        return list(found.values())

    async def get(self, model_id: str) -> ListedModel:
        """The model of that name, if it is listed. :raises NotFound: it is not listed"""
        for model in await self.all():
            if model.id == model_id:
                return model
        raise NotFound(f"model {model_id[:100]} was not found")

    def _served(self, upstream: Upstream, said: Sequence[ListedModel]) -> list[ListedModel]:
        """What a server lists and gets the requests for; and what the operator names, listed or not."""
        listed = {each.id: each for each in said}
        named = [pattern for pattern in upstream.models if not pattern.endswith("*")]
        found = {each: ListedModel(id=each) for each in named} | listed
        api = upstream.api
        return [each for each in found.values() if self._upstreams.of(each.id, api) is upstream]
