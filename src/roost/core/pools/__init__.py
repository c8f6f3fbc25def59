"""Pools of interpreters. An identifier of a pool is a session, so there is no second queue, store or sandbox."""
