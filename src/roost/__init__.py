"""Roost: durable, sandboxed coding-agent sessions behind the Claude Managed Agents API."""

__version__ = "0.1.0"
