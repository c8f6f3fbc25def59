"""Who calls, from which page, with which token, and how often."""
