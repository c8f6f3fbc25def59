"""The messages harness: the contract, and what is its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.harnesses.messages_session import MessagesSession

from roost.serve.http import listening
from roost.testing.harness_contract import HarnessContract
from roost.testing.scripted_model import ScriptedModel


class TestMessagesHarness(HarnessContract):
    builtin = ("bash", {"command": "echo hello"})

    @pytest.fixture
    async def model(self) -> AsyncGenerator[ScriptedModel, None]:
        model = ScriptedModel()
        async with listening(model, "127.0.0.1", 0) as model.url:
            yield model

    @pytest.fixture
    def harness(self, model: ScriptedModel, tmp_path: Path) -> MessagesSession:
        return MessagesSession(model.url, tmp_path)
