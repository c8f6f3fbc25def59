"""Bytes that clients upload and agents put out, kept in the blob store."""
