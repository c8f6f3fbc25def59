"""Vaults: credentials that sessions use and never see."""
