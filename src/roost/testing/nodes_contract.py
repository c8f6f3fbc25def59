"""The contract of nodes: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.errors import NotFound
from roost.ports.nodes import About
from roost.testing.stage import NODE, Stage, message
from roost.testing.store_contract import StoreContract

ABOUT = About(name="red", version="1.2.3", started_at=7, sessions=3, working=2, warm=1, most=64)


class NodesContract(StoreContract):
    """What an operator relies on, whichever database is behind it."""

    async def test_a_node_is_shown_as_it_said_with_its_lease(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        await stage.log.renew(NODE, 30)
        assert await nodes.tell(NODE, ABOUT) is False
        [node] = await nodes.all()
        assert (node.id, node.about, node.draining_since) == (NODE, ABOUT, 0)
        assert node.lives
        assert 0 < node.expires_at - node.read_at <= 30_000_000

    async def test_a_node_lives_as_long_as_its_lease(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        assert not await nodes.lives(NODE)
        await stage.log.renew(NODE, 30)
        assert await nodes.lives(NODE)
        await stage.log.renew(NODE, 0)
        assert not await nodes.lives(NODE)
        await stage.log.renew(NODE, 0.01)
        await anyio.sleep(0.1)
        assert not await nodes.lives(NODE)

    async def test_of_a_node_without_a_lease_nothing_is_kept(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        assert await nodes.tell("node_x", ABOUT) is False
        assert list(await nodes.all()) == []
        await stage.log.renew(NODE, 30)
        await stage.log.renew(NODE, 0)
        assert list(await nodes.all()) == []

    async def test_a_marked_node_is_told_until_the_mark_is_taken_away(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        await stage.log.renew(NODE, 30)
        await nodes.mark(NODE, draining=True)
        [first] = await nodes.all()
        await nodes.mark(NODE, draining=True)
        [again] = await nodes.all()
        assert again.draining_since == first.draining_since > 0
        await stage.log.renew(NODE, 30)
        assert await nodes.tell(NODE, ABOUT) is True
        await nodes.mark(NODE, draining=False)
        assert await nodes.tell(NODE, ABOUT) is False

    async def test_a_mark_is_for_living_nodes_and_ends_with_them(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        with pytest.raises(NotFound):
            await nodes.mark("node_x", draining=True)
        await stage.log.renew(NODE, 30)
        await nodes.mark(NODE, draining=True)
        await stage.log.renew(NODE, 0)
        await stage.log.renew(NODE, 30)
        assert await nodes.tell(NODE, ABOUT) is False
        await stage.log.renew(NODE, 0.01)
        await anyio.sleep(0.02)
        with pytest.raises(NotFound):
            await nodes.mark(NODE, draining=True)

    async def test_a_node_that_is_gone_is_shown_with_the_work_it_left(self, stage: Stage) -> None:
        nodes = stage.store.nodes
        await stage.session(message())
        await stage.session(message())
        await stage.claim()
        await stage.log.renew(NODE, 0.01)
        await anyio.sleep(0.02)
        [node] = await nodes.all()
        assert (node.lives, node.waiting) == (False, 2)
