"""What a hand-written tuner raises."""

from __future__ import annotations


class InvalidConfiguration(Exception):
    """Raised by a caller's callbacks: this configuration cannot be used here. The search goes on without it."""


class TuningError(RuntimeError):
    """No configuration could be chosen; the message says for which problem, and why."""
