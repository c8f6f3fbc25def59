"""A server is killed between the two writes that end its work on a session: `finish` and `release`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio
import pytest
from tests.core.node import TENANT, node, texts, types

from roost.domain.session import Status
from roost.ports.sessions import SessionQuery


@pytest.mark.parametrize("last_words", ["", "two"], ids=["at rest", "with a message just accepted"])
async def test_a_session_whose_lease_was_never_given_back_goes_on_and_nothing_is_doubled(
    tmp_path: Path, last_words: str
) -> None:
    worker = [sys.executable, "-m", "tests.faults.release_worker", str(tmp_path), last_words]
    died = await anyio.run_process(worker, check=False, stderr=None)
    assert died.returncode == -signal.SIGKILL
    async with node(tmp_path) as roost:
        (session,) = await roost.store.sessions.page(SessionQuery(tenant=TENANT))
        if not last_words:
            assert session.state.status is Status.IDLE
            await roost.say(session, "two")
        first = await roost.until(session, "session.status_idle")
        entries = await roost.until(session, "session.status_idle", first[-1].seq)
        answers = texts([*first, *entries])
        assert ["1 user message" in answers[0], "2 user messages" in answers[1]] == [True, True]
        assert len(answers) == 2
        whole = types([*first, *entries])
        assert whole.count("session.status_idle") == whole.count("session.status_running") == 2
        assert await roost.store.log.inputs(session.id) == []
