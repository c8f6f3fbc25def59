"""Agents that break: while they are opened, at work, and when they are closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.core.node import Node, node, texts, types

from roost.domain.events import Entry
from roost.domain.session import Session
from roost.errors import SandboxFailed
from roost.ports.drafts import new_draft
from roost.ports.harness import Brief, Emit, Output, TurnEnd
from roost.testing.fake_harness import FakeHarness


class Odd(FakeHarness):
    """A harness whose agent says what it was told, and breaks where a test wants it to."""

    name = "odd"

    def __init__(self) -> None:
        self.cannot_open = False
        self.breaks_at: str | None = None
        self.breaks_with: Exception = RuntimeError("the agent died")
        self.breaks_times = 1000
        self.breaks_on_close = False
        self.closes_in = 0.0
        self.told: list[tuple[list[str], bool]] = []
        self.most_open = 0
        self._open = 0

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Odd, None]:
        if self.cannot_open:
            raise RuntimeError("there is no sandbox")
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.closes_in)
            self._open -= 1
        if self.breaks_on_close:
            raise RuntimeError("it would not go")

    async def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        told = [entry.fields["content"][0]["text"] for entry in inputs]
        self.told.append((told, again))
        yield Emit([new_draft("span.model_request_start")])
        await anyio.sleep(0.1)
        if self.breaks_at in told and self.breaks_times:
            self.breaks_times -= 1
            raise self.breaks_with
        content = [{"type": "text", "text": f"heard {' and '.join(told)}"}]
        yield Emit([new_draft("agent.message", content=content)])
        yield TurnEnd({"type": "end_turn"})

    async def up(self) -> bool:
        return True

    async def interrupt(self) -> None:
        return


async def at_work(roost: Node, text: str) -> Session:
    session = await roost.session(harness="odd")
    await roost.say(session, text)
    await roost.until(session, "span.model_request_start")
    return session


async def test_what_is_queued_behind_a_turn_that_breaks_the_agent_is_gone_on_with(tmp_path: Path):
    odd = Odd()
    odd.breaks_at = "one"
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        session = await at_work(roost, "one")
        await roost.say(session, "two")
        entries = await roost.until(session, "session.status_idle")
        assert [e.fields["error"]["message"] for e in entries if e.type == "session.error"] == [
            "the agent died"
        ]
        assert texts(entries) == ["heard two"]
        assert odd.told == [(["one"], False), (["two"], False)]
        assert entries[-1].fields["stop_reason"] == {"type": "end_turn"}


@pytest.mark.parametrize("times", [3, 4], ids=["mended in time", "given up"])
async def test_a_turn_is_taken_again_in_new_sandboxes_until_it_has_lost_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.01, 0.01, 0.01))
    odd = Odd()
    odd.breaks_at, odd.breaks_times = "one", times
    odd.breaks_with = SandboxFailed("it was killed from outside")
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        session = await at_work(roost, "one")
        await roost.say(session, "two")
        entries = await roost.until(session, "session.status_idle")
        again = [(["one"], True)] * 3
        assert odd.told == [(["one"], False), *again, (["two"], False)]
        said = [e.fields["error"]["retry_status"] for e in entries if e.type == "session.error"]
        given_up = [{"type": "exhausted"}] if times == 4 else []
        assert said == [{"type": "retrying"}] * 3 + given_up
        assert texts(entries) == (["heard two"] if given_up else ["heard one", "heard two"])


async def test_each_turn_has_its_own_count_of_lost_sandboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.01, 0.01, 0.01))
    odd = Odd()
    odd.breaks_with = SandboxFailed("it was killed from outside")
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        session = await roost.session(harness="odd")
        for text in ("one", "two"):
            odd.breaks_at, odd.breaks_times = text, 3
            assert texts(await roost.turn(session, text)) == [f"heard {text}"]


@pytest.mark.parametrize("times", [4, 5], ids=["mended in time", "given up"])
async def test_a_sandbox_of_an_earlier_turn_that_is_dead_costs_the_next_turn_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (0.01, 0.01, 0.01))
    odd = Odd()
    odd.breaks_at, odd.breaks_times = "two", times
    odd.breaks_with = SandboxFailed("it was killed from outside")
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        session = await at_work(roost, "one")
        await roost.say(session, "two")  # taken in the sandbox that is open
        entries = await roost.until(session, "session.status_idle")
        assert odd.told == [(["one"], False), (["two"], False), *[(["two"], True)] * 4]
        assert texts(entries) == (["heard one", "heard two"] if times == 4 else ["heard one"])


async def test_a_turn_that_was_cut_off_waits_for_an_agent_that_cannot_be_opened(tmp_path: Path):
    odd = Odd()
    async with node(tmp_path, harnesses={"odd": odd}, stop_seconds=0.01) as roost:
        session = await at_work(roost, "one")
    odd.cannot_open = True
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        entries = await roost.until(session, "session.status_idle")
        assert "session.error" in types(entries)
        odd.cannot_open = False
        entries = await roost.turn(session, "two")
        assert odd.told == [(["one"], False), (["one"], True), (["two"], False)]
        assert texts(entries) == ["heard one", "heard two"]


async def test_an_agent_is_closed_before_the_next_one_is_opened(tmp_path: Path):
    odd = Odd()
    odd.closes_in = 0.2
    async with node(tmp_path, harnesses={"odd": odd}, stop_seconds=2) as roost:
        session = await roost.session(harness="odd")
        await roost.turn(session, "one")
        assert texts(await roost.turn(session, "two")) == ["heard two"]
        assert odd.most_open == 1


async def test_an_agent_that_will_not_close_costs_nothing(tmp_path: Path):
    odd = Odd()
    odd.breaks_on_close = True
    async with node(tmp_path, harnesses={"odd": odd}) as roost:
        session = await roost.session(harness="odd")
        assert texts(await roost.turn(session, "one")) == ["heard one"]
        entries = await roost.turn(session, "two")
        assert texts(entries) == ["heard two"]
        assert "session.error" not in types(entries)
