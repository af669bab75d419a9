"""The command ``pytest-autotune``, which works with caches and runs no tests. A module for each subcommand."""

from pytest_autotune.cli.main import main

__all__ = ["main"]
