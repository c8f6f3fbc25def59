"""Webhooks: servers elsewhere that are told what happens here."""
