"""The `claude` CLI as a harness."""

from roost.harnesses.claude.harness import INSIDE, ClaudeHarness, make
from roost.harnesses.claude.launch import PINNED, bundled_cli

__all__ = ["INSIDE", "PINNED", "ClaudeHarness", "bundled_cli", "make"]
