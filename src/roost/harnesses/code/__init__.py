"""The harness that runs code: a session of it is an interpreter, and each message a piece of code."""

from roost.harnesses.code.harness import CodeHarness, make

__all__ = ["CodeHarness", "make"]
