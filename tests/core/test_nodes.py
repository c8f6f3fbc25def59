"""A node that drains: what it finishes, what it leaves to others, and that it can come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import Node, message, node, texts

from roost.core.work.nodes import Fleet
from roost.domain.session import Lease, Session, Status
from roost.errors import Conflict, NotFound
from roost.ports.nodes import About


def said(text: str, **more: Any) -> str:
    return f"SCRIPT{json.dumps([{'text': text, **more}])}"


def fleet(roost: Node) -> Fleet:
    return Fleet(roost.store.nodes, roost.notifier, roost.dispatcher.node)


async def at_work(roost: Node) -> None:
    with anyio.fail_after(60):
        while not roost.model.requests:
            await anyio.lowlevel.checkpoint()


async def handed_over(roost: Node, session: Session) -> Session:
    """The session, once nobody has it."""
    with anyio.fail_after(60):
        while True:
            found = await roost.store.sessions.find(session.id)
            if found.state.owner is None and roost.dispatcher.running == 0:
                return found
            await anyio.sleep(0.01)


async def test_a_draining_node_ends_its_turn_and_leaves_the_next_one_to_others(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session(message(said("first", delay=0.5)))
        await at_work(roost)
        await roost.say(session, said("second"))
        await fleet(roost).mark(roost.dispatcher.node, draining=True)
        found = await handed_over(roost, session)
        assert found.state.status is Status.RUNNING
        assert found.state.turn is None, "the turn that was over would be taken again"
        log = await roost.store.log.read(session.id, 0, 100)
        assert texts(log) == ["first"]
        late = await roost.session(message(said("third")))
        await fleet(roost).mark(roost.dispatcher.node, draining=False)
        for other, answers in ((session, ["first", "second"]), (late, ["third"])):
            seen = await roost.until(other, "session.status_idle")
            assert texts(seen) == answers
            assert len([e for e in seen if e.type == "user.message" and not e.queued]) == len(
                answers
            )


async def test_a_turn_that_outlasts_the_drain_goes_on_elsewhere(tmp_path: Path):
    async with node(tmp_path, drain_seconds=0.1) as roost:
        session = await roost.session(message(said("in the end", delay=30)))
        await at_work(roost)
        await fleet(roost).mark(roost.dispatcher.node, draining=True)
        found = await handed_over(roost, session)
        assert found.state.turn is not None, "nobody would take it again"
        assert found.state.status is Status.RUNNING


class SlowToRelease:
    """A log that takes a moment to take a session back."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def release(self, lease: Lease) -> None:
        await anyio.sleep(0.1)
        await self._log.release(lease)


async def test_a_node_that_stops_in_the_middle_of_turns_hands_them_all_back(tmp_path: Path):
    """Else they would wait until its lease has run out, and look as if somebody worked on them."""
    async with node(tmp_path, working=False) as roost:
        roost.dispatcher._log = SlowToRelease(roost.store.log)  # type: ignore[assignment]
        async with anyio.create_task_group() as tasks:
            await tasks.start(roost.dispatcher.run, 0)
            sessions = [await roost.session(message(said("never", delay=60))) for _ in range(3)]
            for session in sessions:
                await roost.until(session, "span.model_request_start")
            roost.dispatcher.stop()
        states = [(await roost.store.sessions.find(session.id)).state for session in sessions]
        assert [(state.owner, state.status) for state in states] == [(None, Status.RUNNING)] * 3


async def test_a_mark_that_is_taken_away_at_once_costs_nobody_a_turn(tmp_path: Path):
    async with node(tmp_path) as roost:
        session = await roost.session(message(said("first", delay=0.5)))
        await at_work(roost)
        await fleet(roost).mark(roost.dispatcher.node, draining=True)
        await fleet(roost).mark(roost.dispatcher.node, draining=False)
        assert texts(await roost.until(session, "session.status_idle")) == ["first"]
        assert texts(await roost.turn(session, said("second"))) == ["second"]
        assert (await roost.store.sessions.find(session.id)).state.generation == 2


async def test_a_node_is_named_by_its_id_or_by_a_name_that_is_its_own(tmp_path: Path):
    async with node(tmp_path, working=False) as roost:
        for id, name in (("node_1", "red"), ("node_2", "blue"), ("node_3", "blue")):
            await roost.store.log.renew(id, 30)
            await roost.store.nodes.tell(id, About(name=name))
        everybody = fleet(roost)
        assert (await everybody.mark("red", draining=True)).id == "node_1"
        assert (await everybody.mark("node_3", draining=True)).draining_since > 0
        with pytest.raises(Conflict) as several:
            await everybody.mark("blue", draining=True)
        assert "node_2, node_3" in str(several.value.hint)
        with pytest.raises(NotFound):
            await everybody.mark("green", draining=True)
