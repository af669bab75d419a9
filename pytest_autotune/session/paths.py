"""Paths as users name them: relative to where they were written, and shown as they would be typed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.locations import Location


@dataclass(frozen=True)
class CacheArgument:
    """A path as the user named it.

    :param text: what was written.
    :param base: the folder that it is relative to.
    :param given: where it was written: a flag, or the name of an ini value.
    :param typed: how the same path is typed on the command line of this run.
    """

    text: str
    base: Path
    given: str
    typed: str

    @property
    def location(self) -> str:
        """The absolute path as text; keeps a trailing slash, which means a folder of entries."""
        path = str(self.base / os.path.expanduser(self.text))
        return path + "/" if self.text.endswith("/") else path

    @property
    def store_path(self) -> Location:
        """The same path as the stores take it."""
        return Location.of(self.text, self.base, self.typed)

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        return os.path.realpath(self.location) == os.path.realpath(other.location)


def path_argument(text: str, base: Path, given: str, here: Path) -> CacheArgument:
    """A path that is relative to ``base``, for a run that was started in the folder ``here``."""
    typed = text
    if base != here and not text.startswith("~") and not os.path.isabs(text):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
    return CacheArgument(text, base, given, typed)
