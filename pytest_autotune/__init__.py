"""Persisted autotuning for test suites."""
