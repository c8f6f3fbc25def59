"""One file for each resource: its operations, what requests may contain, what clients see of it."""
