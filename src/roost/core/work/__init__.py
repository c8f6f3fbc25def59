"""WORK: sessions with work are claimed, and their agents run, under a lease.

`dispatch` claims, `runner` owns one session until nothing is left to do, `turn` takes one turn.
"""
