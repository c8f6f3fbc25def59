"""WRITE: an input is durable before its sender is answered."""
