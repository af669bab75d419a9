"""Paths as users name them: relative to where they were written, and shown as they would be typed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.locations import Location


@dataclass(frozen=True)
class CacheArgument:
    """A path as the user named it.

    :param given: where it was written: a flag, or the name of an ini value.
    """

    location: Location
    given: str

    @property
    def typed(self) -> str:
        """How the same path is typed on the command line of this run."""
        return str(self.location)

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        return self.location.real == other.location.real


def path_argument(text: str, base: Path, given: str, here: Path) -> CacheArgument:
    """A path that is relative to ``base``, for a run that was started in the folder ``here``."""
    typed = text
    if base != here and not text.startswith("~") and not os.path.isabs(text):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
    return CacheArgument(Location.of(text, base, typed), given)
