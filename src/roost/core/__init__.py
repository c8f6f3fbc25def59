"""What the server does, in rooms; it speaks to ports only, and every arrow between rooms points down.

WRITE: `write` accepts an input. WORK: `work` claims the session and runs its agent, in what `sandbox`
opens. READ: `read` follows the log. `sessions` makes, changes, forks and moves sessions; `workspaces` and
`snapshots` keep their files; `records` and `files` are what clients store; `access` is who may do what.
"""
