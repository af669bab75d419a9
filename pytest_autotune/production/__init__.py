"""Choices outside pytest: exports that others ship and read, and what reads a shipped cache."""
