"""READ: the log after a cursor, for one follower or for many, and what a session came to."""
