"""Agents that speak the Agent Client Protocol, as harnesses."""

from roost.harnesses.acp.agents import AcpAgent
from roost.harnesses.acp.harness import AcpHarness, make

__all__ = ["AcpAgent", "AcpHarness", "make"]
