"""Nouns and rules, pure: no await, no clock, no I/O."""
