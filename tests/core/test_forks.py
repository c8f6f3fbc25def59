"""Forks and rewinds of conversations, with a real database and agents that talk to a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.core.node import TENANT, Node, message, node, texts, types
from tests.core.test_local_workspaces import Machine

from roost.blobs.folder import FolderBlobs
from roost.core.records.agents import Agents
from roost.core.sessions.forks import Forks
from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness
from roost.core.sessions.trust import Trust
from roost.core.workspaces.copies import WorkspacePast
from roost.domain.session import Session
from roost.errors import InvalidRequest, NotFound, SessionBusy, SnapshotGone
from roost.harnesses.scripted import ScriptedHarness
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import EventQuery
from roost.testing.fake_harness import IN_SANDBOX
from roost.testing.null_parts import (
    EveryModel,
    NoOfferedSandboxes,
    NoWorkspaces,
    lifecycle_of,
    model_at,
)

KEY = Key(
    id="key_1",
    tenant=TENANT,
    digest=b"",
    name="",
    role="admin",
    created_at=0,
    hint="",
    trust_ceiling="full",
)


@asynccontextmanager
async def forks(data: Path) -> AsyncGenerator[tuple[Node, Forks], None]:
    async with node(data) as here:
        store, trust = here.store, Trust(NoOfferedSandboxes())
        harnesses = {"scripted": ScriptedHarness(model_at("", ""), retries=0, retry_seconds=0)}
        agents = Agents(store.catalog, None, EveryModel())
        lifecycle = lifecycle_of(store, here.notifier, harnesses, agents)
        yield (
            here,
            Forks(
                *(store.sessions, store.log, here.notifier, lifecycle),
                trust=trust,
                files=NoWorkspaces(),
            ),
        )


async def test_a_fork_that_has_done_nothing_yet_is_a_place_to_fork_at_and_to_go_back_to(
    tmp_path: Path,
):
    async with forks(tmp_path / "data") as (here, going_back):
        machine = Machine(tmp_path / "files", here.store, FolderBlobs(tmp_path / "blobs"))
        going_back._files = machine.files
        known = KnownHarness(name="scripted", profile=IN_SANDBOX, version="1")
        going_back._choice = HarnessChoice({"scripted": known}, "scripted", EveryModel())

        async def turn(
            session: Session, generation: int, text: str, past: WorkspacePast | None
        ) -> str:
            home = machine.folder / "homes" / session.id
            home.mkdir(parents=True, exist_ok=True)
            async with machine.files.open(session.id, generation, past):
                await machine.files.begun(session.id)
                found = home / "file"
                before = found.read_text() if found.exists() else ""
                found.write_text(text)
                await here.turn(session, text)
                state = (await here.store.sessions.find(session.id)).state
                machine.files.rested(session.id, state.turned)
            return before

        session = await here.session()
        for number in (1, 2):
            await turn(session, number, f"turn {number}", None)
        first = await going_back.fork(KEY, session.id, {"at": 1}, None)
        second = await going_back.fork(KEY, first.id, {}, None)
        assert await turn(second, 2, "of the second", None) == "turn 1"
        assert await turn(first, 2, "of the first", None) == "turn 1"
        third = await going_back.fork(KEY, first.id, {"at": 1}, None)
        assert await turn(third, 2, "of the third", None) == "turn 1"
        rewound = await going_back.rewind(KEY, first.id, {"to": 1})
        assert await turn(first, 3, "on from there", WorkspacePast.of(rewound.state)) == "turn 1"
        # Of turns before the one it began at, a fork has the conversation and not the files.
        late = await going_back.fork(KEY, session.id, {"at": 2}, None)
        with pytest.raises(SnapshotGone):
            await going_back.fork(KEY, late.id, {"at": 1}, None)


async def ten_turns(here: Node) -> Session:
    session = await here.session()
    for number in range(1, 11):
        await here.turn(session, f"word{number}")
    return session


async def remembered(here: Node, session: Session) -> list[str]:
    """What the model is sent of what people said, before the next message, which has a script of its own: a
    slow one that is still in the conversation would be played again."""
    await here.turn(session, 'What have I said? SCRIPT[{"text": "This."}]')
    sent = here.model.requests[-1].body["messages"]
    said = [block["text"] for m in sent if m["role"] == "user" for block in m["content"]]
    return said[:-1]


async def test_a_fork_at_each_of_ten_turns_remembers_that_turn_and_no_later_one(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await ten_turns(here)
        turns = await going_back.turns(KEY, session.id)
        assert [turn["number"] for turn in turns] == list(range(1, 11))
        for number, turn in enumerate(turns, 1):
            at = number if number % 2 else turn["event_id"]
            fork = await going_back.fork(KEY, session.id, {"at": at}, None)
            assert fork.spec.forked_from == {"session_id": session.id, "event_id": turn["event_id"]}
            words = [f"word{n}" for n in range(1, number + 1)]
            assert await remembered(here, fork) == words
        newest = await going_back.fork(KEY, session.id, {}, None)
        assert len(await going_back.turns(KEY, newest.id)) == 10
        assert await remembered(here, session) == [f"word{n}" for n in range(1, 11)]


async def test_messages_that_came_too_early_are_turns_of_their_own(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await here.session(message('SCRIPT[{"text": "slow", "delay": 0.5}]'))
        await here.until(session, "span.model_request_start")
        await here.say(session, "second")
        await here.until(session, "session.status_idle")
        turns = await going_back.turns(KEY, session.id)
        assert len(turns) == 2
        fork = await going_back.fork(KEY, session.id, {"at": 1}, None)
        assert len(await remembered(here, fork)) == 1
        state = (await here.store.sessions.find(fork.id)).state
        assert state.queued == 0


async def test_a_rewound_session_goes_on_from_there_and_its_log_keeps_all(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await ten_turns(here)
        before = await here.store.log.read(session.id, 0, 10_000)
        rewound = await going_back.rewind(KEY, session.id, {"to": 4})
        log = await here.store.log.read(session.id, 0, 10_000)
        assert log[:-1] == before
        assert log[-1].type == "roost.rewound"
        assert log[-1].fields["to"]["turn"] == 4
        shown = await here.store.log.page(session.id, EventQuery(hidden=rewound.state.rewound))
        assert len(texts(shown)) == 4
        assert await remembered(here, session) == [f"word{n}" for n in range(1, 5)]
        assert len(await going_back.turns(KEY, session.id)) == 5
        # What was rewound is still a place to go to: in a fork, or by another rewind.
        lost = [entry for entry in before if entry.type == "agent.message"][8]
        fork = await going_back.fork(KEY, session.id, {"at": lost.id}, None)
        assert await remembered(here, fork) == [f"word{n}" for n in range(1, 10)]
        await going_back.rewind(KEY, session.id, {"to": lost.id})
        assert await remembered(here, session) == [f"word{n}" for n in range(1, 10)]


async def test_a_fork_of_a_fork_and_of_a_rewound_session_has_its_own_conversation(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await ten_turns(here)
        await going_back.rewind(KEY, session.id, {"to": 2})
        await here.turn(session, "another word")
        fork = await going_back.fork(KEY, session.id, {}, None)
        assert "roost.rewound" not in types(await here.store.log.read(fork.id, 0, 10_000))
        again = await going_back.fork(KEY, fork.id, {"at": 3}, None)
        assert await remembered(here, again) == ["word1", "word2", "another word"]
        assert fork.state.rewinds == ()
        assert again.spec.origin == session.id


@pytest.mark.parametrize(
    ("at", "error"),
    [(0, NotFound), (11, NotFound), ("sevt_none", NotFound)],
)
async def test_a_turn_that_is_not_there_is_refused(tmp_path: Path, at: Any, error: type[Exception]):
    async with forks(tmp_path) as (here, going_back):
        session = await here.session()
        with pytest.raises(InvalidRequest):
            await going_back.fork(KEY, session.id, {}, None)
        await here.turn(session, "word1")
        with pytest.raises(error):
            await going_back.fork(KEY, session.id, {"at": at}, None)
        with pytest.raises(error):
            await going_back.rewind(KEY, session.id, {"to": at})


async def test_a_session_at_work_is_not_rewound_and_can_be_forked(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await here.session()
        await here.turn(session, "word1")
        said = await here.say(session, 'SCRIPT[{"text": "slow", "delay": 30}]')
        await here.until(session, "span.model_request_start", said)
        with pytest.raises(SessionBusy) as refused:
            await going_back.rewind(KEY, session.id, {"to": 1})
        assert "interrupt" in (refused.value.hint or "")
        fork = await going_back.fork(KEY, session.id, {}, None)
        assert await remembered(here, fork) == ["word1"]
        with pytest.raises(NotFound, match="not part of a turn that has ended"):
            running = (await here.store.log.read(session.id, said - 1, 1))[0]
            await going_back.fork(KEY, session.id, {"at": running.id}, None)


async def test_a_withdrawn_message_is_told_neither_in_a_fork_nor_after_a_rewind(tmp_path: Path):
    async with forks(tmp_path) as (here, going_back):
        session = await here.session()
        await here.turn(session, "word1")
        slow = await here.say(session, 'SCRIPT[{"text": "slow", "delay": 30}]')
        await here.until(session, "span.model_request_start", slow)
        behind = await here.say(session, "withdrawn word")
        await here.intake.accept(session.id, [new_draft("user.interrupt")])
        await here.until(session, "session.status_idle", slow)
        await here.turn(session, 'word3 SCRIPT[{"text": "Yes."}]')
        listed = await here.store.log.page(session.id, EventQuery(types=["user.message"]))
        assert [entry.withdrawn for entry in listed] == [False, False, True, False]
        [gone] = [entry for entry in listed if entry.withdrawn]
        assert gone.seq > behind
        turns = await going_back.turns(KEY, session.id)
        assert [turn["number"] for turn in turns] == [1, 2, 3]
        for at in ({}, {"at": 2}, {"at": 3}):
            fork = await going_back.fork(KEY, session.id, at, None)
            words = await remembered(here, fork)
            assert words[0] == "word1"
            assert "withdrawn word" not in words
            assert (await here.store.sessions.find(fork.id)).state.queued == 0
        await going_back.rewind(KEY, session.id, {"to": 2})
        assert "withdrawn word" not in await remembered(here, session)
        assert not any("withdrawn word" in str(seen.body) for seen in here.model.requests)
