"""Real parts that some tests need: found, or named aloud."""

from __future__ import annotations

import os

import pytest


def need(part: str, ok: object, how_to_get: str) -> None:
    """Go on if the part is there; else skip with the command that gets it. In CI, fail instead."""
    if ok:
        return
    message = f"{part} is missing; get it with: {how_to_get}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
