"""What is around a session's agent: its directories, its egress, its budget and its sandbox."""
