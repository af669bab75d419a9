"""Where a cache is kept, as a user wrote it: parsed once, and known by its absolute path from then on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

#: The file that makes a folder one of ours.
MARKER = ".pytest-autotune"


@dataclass(frozen=True)
class Location:
    """Where a cache is kept.

    :param folder: it was written with a slash at its end: a folder of one file for each problem.
    :param shown: the path as the user wrote it, for messages.
    """

    path: Path
    folder: bool = False
    shown: str = field(default="", compare=False)

    @classmethod
    def of(cls, written: str | os.PathLike[str], base: Path, shown: str = "") -> Location:
        """The location that a user wrote.

        :param base: the folder that it is relative to.
        :param shown: how to call it in messages; empty: as it was written.
        """
        text = os.fspath(written)
        return cls(base / os.path.expanduser(text), text.endswith("/"), shown or text)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of caches, by the way it was written or by what is there."""
        return self.folder or os.path.isfile(self.path / MARKER)  # Path.is_file raises for some paths

    @property
    def real(self) -> str:
        """The absolute path without links: the same for whatever names one file or folder."""
        return os.path.realpath(self.path)

    def __str__(self) -> str:
        return self.shown or f"{self.path}{'/' if self.folder else ''}"
