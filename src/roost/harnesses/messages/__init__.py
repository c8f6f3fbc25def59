"""A loop of our own on the Messages API; `harness` says where to read on."""

from roost.harnesses.messages.harness import MessagesHarness, make

__all__ = ["MessagesHarness", "make"]
