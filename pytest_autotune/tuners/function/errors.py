"""What a hand-written tuner raises."""

from __future__ import annotations


class InvalidConfiguration(Exception):
    """Raised by a caller's callbacks: this configuration cannot be used here. The search goes on without it."""


class TuningError(RuntimeError):
    """No configuration could be chosen; the message says for which problem, and why.

    :param reasons: why each candidate failed, where all did and will again; else empty.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons
