"""Databases behind the log, session, catalog and key ports."""
