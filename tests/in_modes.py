"""Modes for tests of tuners; a test is skipped where there is no such mode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def verifying(share: str = "all", seconds: float = 100.0) -> Any:
    """Loaded choices are raced; ``verdicts`` of it are those that it has written down, in their order."""
    verify = pytest.importorskip("pytest_autotune.modes.verify")

    class Noting(verify.Verify):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(verify.parse(share), seconds)
            self.verdicts: list[Any] = []

        def race(self, session: Any, tuning: Any, contest: Any) -> None:
            def append(event: Any) -> None:
                self.verdicts += [verdict for _, verdict in verify.verdicts([event])]
                session.append(event)

            super().race(SimpleNamespace(append=append, claimed=session.claimed), tuning, contest)

    return Noting()


def sweeping(part: int, parts: int) -> Any:
    """One of several sweeps."""
    return pytest.importorskip("pytest_autotune.modes.sweep").Sweep(part=part, parts=parts)
