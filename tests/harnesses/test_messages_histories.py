"""Sessions with the loop of our own, side by side on one egress, as in a server: their turns are cancelled anywhere.

A turn that was cancelled is taken again in a conversation that is opened anew, as a runner does it. Whatever happened
before, each session is told its own answers, all of them, once and in order; the model is never asked for one session
with the words of another; and nothing is left open.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.egress.both_sides import until
from tests.harnesses.messages_session import MessagesSession, egress_options

from roost.builtin_model.script import Fault
from roost.domain.events import Entry
from roost.egress.host import HostEgress, serving
from roost.serve.http import listening
from roost.testing.cancelling import cancelled_at_each_step, cancelled_at_step
from roost.testing.in_memory_runner import InMemoryRunner, script, with_toolset
from roost.testing.scripted_model import ScriptedModel, SeenRequest

SESSIONS = 3
MARK = re.compile(r"<(\d+)\.\d+>")


class Step(msgspec.Struct, frozen=True):
    """A turn of a session: whether it reads a file, and where it waits when it is cancelled; 0: it is not."""

    session: int
    reads: bool
    cancel: int


steps = st.builds(
    Step,
    session=st.integers(0, SESSIONS - 1),
    reads=st.sampled_from([False, False, True]),
    cancel=st.sampled_from([0, *range(1, 40)]),
)


class Model(ScriptedModel):
    """Looks whose words it is asked with."""

    def __init__(self) -> None:
        super().__init__(keep=0)
        self.mixed: list[str] = []

    def seen(self, request: SeenRequest) -> Fault | None:
        asked = str(request.body.get("messages"))
        if len(set(MARK.findall(asked))) > 1:
            self.mixed.append(asked)
        return super().seen(request)


class Talk:
    """One session, and what its agent is to have said."""

    def __init__(self, number: int, url: str, root: Path, egress: HostEgress) -> None:
        (root / str(number)).mkdir()
        self._number = number
        harness = MessagesSession(url, root / str(number), egress=egress)
        self.runner = InMemoryRunner(harness, with_toolset())
        self.expected: list[str] = []

    async def take(self, turns: Sequence[Step]) -> None:
        """Turns in one conversation, until one of them is cancelled: it is taken again in the next."""
        left, cut = list(turns), None
        while left or cut:
            async with self.runner.open() as conversation:
                if cut is not None:
                    await self.runner.turn(conversation, [cut], again=True)
                    cut = None
                while left and cut is None:
                    step, message = left[0], self.message(left.pop(0))

                    async def work(message: Entry = message) -> None:
                        await self.runner.turn(conversation, [message])

                    if not step.cancel:
                        await work()
                    elif await cancelled_at_step(work, step.cancel):
                        cut = message

    def message(self, step: Step) -> Entry:
        said = f"<{self._number}.{len(self.expected)}>"
        self.expected.append(f"{said} is all I say.")
        read = {"tool": "read", "input": {"file_path": "nothing"}}
        answer = {"text": self.expected[-1], "chunk_delay": 0.001}
        return self.runner.say(script(*([read] if step.reads else []), answer, say=said))


@asynccontextmanager
async def sessions() -> AsyncGenerator[tuple[Model, list[Talk]], None]:
    model = Model()
    with tempfile.TemporaryDirectory(prefix="loop-") as name:
        async with (
            listening(model, "127.0.0.1", 0) as url,
            serving(egress_options(Path(name) / "egress", url)) as egress,
        ):
            yield model, [Talk(n, url, Path(name), egress) for n in range(SESSIONS)]


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def played(history: list[Step]) -> None:
    async with sessions() as (model, talks):
        await talks[0].take([Step(0, reads=True, cancel=0)])  # what is opened once stays open
        before = open_files()
        async with anyio.create_task_group() as tasks:
            for number, talk in enumerate(talks):
                tasks.start_soon(talk.take, [step for step in history if step.session == number])
        for talk in talks:
            await talk.take([Step(0, reads=False, cancel=0)])
            assert talk.runner.texts() == talk.expected
        assert model.mixed == []
        # The model's server sees the end of a connection a moment later.
        await until(lambda: open_files() <= before)


def run(histories: int) -> None:
    @settings(
        max_examples=histories,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=6, max_size=15))
    def histories_are_clean(history: list[Step]) -> None:
        anyio.run(played, history, backend_options={"use_uvloop": True})

    histories_are_clean()


def test_no_word_of_one_session_is_told_to_another():
    run(8)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_no_word_of_one_session_is_told_to_another_in_a_thousand_histories():
    run(1000)


async def test_cancelled_at_every_wait_a_request_leaves_the_next_one_its_own_answer():
    async with sessions() as (model, (talk, other, _)):

        async def work() -> None:
            message = talk.message(Step(0, reads=False, cancel=0))
            try:
                async with talk.runner.open() as conversation:
                    await talk.runner.turn(conversation, [message])
            except BaseException:
                talk.runner.interrupted()  # nobody waits for it any more
                raise

        reached = 0
        async for step in cancelled_at_each_step(work):
            said, reached = talk.runner.texts(), step
            assert said == [text for text in talk.expected if text in said]
        await other.take([Step(1, reads=False, cancel=0)])
        assert other.runner.texts() == other.expected
        assert talk.runner.texts()[-1] == talk.expected[-1]
        assert reached > 8, "that was not the whole of it"
        assert model.mixed == []
