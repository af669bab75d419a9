"""The one error that reading and writing caches raises."""

from __future__ import annotations

from pytest_autotune.cache.foreign_text import to_one_line

# Enough for a name and its place; a damaged file may have a line of a megabyte.
_LONGEST = 300


class CacheError(Exception):
    """A cache cannot be read or written; one line says where, what was found and what to do.

    :param where: ``path``, ``path:line`` or ``path:line:column``.
    :param found: what is wrong there.
    :param remedy: what to do about it; empty where that is plain.
    """

    def __init__(self, place: str, event: str, remedy: str = "") -> None:
        super().__init__(place, event, remedy)
        self.place = place
        self.event = event
        self.remedy = remedy

    def __str__(self) -> str:
        found = to_one_line(" ".join(self.event.split()), _LONGEST)
        remedy = f" ({self.remedy})" if self.remedy else ""
        # Nothing is cut from the path, which has to be found again, nor from what to do.
        whole = " ".join(f"{self.place}: {found}{remedy}".split())
        return to_one_line(whole, len(whole))


class ReportError(CacheError):
    """What is named as a cache is the JSON report of a run."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "is the report of a run, not a cache", "name the cache that the run loaded or dumped")
