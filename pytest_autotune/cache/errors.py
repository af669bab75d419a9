"""The one error that reading and writing caches raises."""

from __future__ import annotations


class CacheError(Exception):
    """A cache cannot be read or written; one line says where, what was found and what to do.

    :param where: ``path``, ``path:line`` or ``path:line:column``.
    :param found: what is wrong there.
    :param remedy: what to do about it; empty where that is plain.
    """

    def __init__(self, where: str, found: str, remedy: str = "") -> None:
        super().__init__(where, found, remedy)
        self.where = where
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        remedy = f" ({self.remedy})" if self.remedy else ""
        line = " ".join(f"{self.where}: {self.found}{remedy}".split())
        # What was found in a file may be made to move a terminal's cursor.
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
