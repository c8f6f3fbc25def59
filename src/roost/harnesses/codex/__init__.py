"""Codex, driven by its app server. Begin in `harness`."""

from roost.harnesses.codex.harness import PROFILE, CodexHarness, make
from roost.harnesses.codex.launch import bundled_program

__all__ = ["PROFILE", "CodexHarness", "bundled_program", "make"]
