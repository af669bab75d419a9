"""The error that reading and writing caches raises."""

from __future__ import annotations

from pytest_autotune.cache.wording import to_one_line

#: Characters of a message's event. A damaged file may have a line of a megabyte.
_MAX_EVENT_LENGTH = 300


class CacheError(Exception):
    """A cache cannot be read or written. The message is a line: the place, the event, and the remedy.

    :param place: ``path``, ``path:line`` or ``path:line:column``.
    :param event: the problem at that place.
    :param remedy: the user's next step; empty if it is obvious.
    """

    def __init__(self, place: str, event: str, remedy: str = "") -> None:
        super().__init__(place, event, remedy)
        self.place = place
        self.event = event
        self.remedy = remedy

    def __str__(self) -> str:
        event = to_one_line(" ".join(self.event.split()), _MAX_EVENT_LENGTH)
        message = f"{self.place}: {event}"
        if self.remedy:
            message += f" ({self.remedy})"
        # The path and the remedy are never shortened: the user has to find the path, and to type the remedy.
        message = " ".join(message.split())
        return to_one_line(message, len(message))


class ReportError(CacheError):
    """The user named the JSON report of a run as a cache."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "is the report of a run, not a cache", "name the cache that the run loaded or dumped")
