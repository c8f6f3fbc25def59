"""What runs inside a sandbox. It imports nothing of Roost, and nothing but the standard library."""
