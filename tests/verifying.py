"""Runs of tests in which loaded choices are raced, and what comes of each race."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def verifying(share: str = "all", seconds: float = 100.0) -> Any:
    """The mode; its ``verdicts`` are those that it has written down, in their order.

    Where there is no such mode, the test is skipped.
    """
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
