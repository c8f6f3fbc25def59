"""Shipped contract kits, the scripted model, and a live server for tests."""
