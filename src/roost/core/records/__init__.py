"""Agents, environments, skills and tasks: records of the catalog, created, versioned and archived."""
