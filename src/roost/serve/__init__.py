"""Assembling, starting and stopping the server."""
