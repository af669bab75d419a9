"""The command ``pytest-autotune``: what can be done with caches without running tests."""

from pytest_autotune.cli.main import main

__all__ = ["main"]
