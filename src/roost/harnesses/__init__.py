"""Agents behind the harness port."""
