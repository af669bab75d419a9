"""Digests of the source that a choice depends on."""
