"""The codex harness, with the real program: the contract, and what is its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.harnesses.claude_session import Served, serving
from tests.harnesses.codex_session import codex_harness
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.ports.harness import Harness
from roost.testing.harness_contract import HarnessContract


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return codex_harness(model, tmp_path)


class TestCodexHarness(HarnessContract):
    builtin = ("exec_command", {"cmd": "echo hello"})
    question: tuple[str, dict[str, Any]] = (
        "request_user_input",
        {
            "questions": [
                {
                    "id": "colour",
                    "question": "Which?",
                    "header": "Colour",
                    "options": [
                        {"label": "Red", "description": "r"},
                        {"label": "Blue", "description": "b"},
                    ],
                }
            ]
        },
    )

    # The kit cuts a turn off at every output, which takes the program minutes.
    test_a_turn_cut_off_anywhere_comes_to_the_same_conversation = pytest.mark.chaos(
        HarnessContract.test_a_turn_cut_off_anywhere_comes_to_the_same_conversation
    )
    test_a_turn_cut_off_twice_comes_to_the_same_conversation = pytest.mark.chaos(
        HarnessContract.test_a_turn_cut_off_twice_comes_to_the_same_conversation
    )
    test_a_result_is_delivered_once_wherever_its_turn_is_cut_off = pytest.mark.chaos(
        HarnessContract.test_a_result_is_delivered_once_wherever_its_turn_is_cut_off
    )

    @pytest.fixture
    def harness(self, sandboxed: SandboxedHarness) -> Harness:
        return sandboxed

    @pytest.fixture
    async def model(self) -> AsyncGenerator[Served, None]:
        async with serving() as model:
            yield model
