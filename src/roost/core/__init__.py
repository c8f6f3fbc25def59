"""Verbs, one file per step of a message's path; they speak to ports only."""
