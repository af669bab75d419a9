"""The errors of reading and writing caches, and the question whether an error belongs to a signal handler."""

from __future__ import annotations

import signal
import traceback

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
        super().__init__(place, "is a report of a run, not a cache", "name the cache that the run loaded or dumped")


class MissingCacheError(CacheError):
    """There is no cache at a place. The remedy is the option that creates the cache.

    :param created: the object of the remedy's verb: ``it``, or ``one`` if the event names another thing.
    """

    def __init__(self, place: str, event: str, created: str = "it") -> None:
        super().__init__(place, event, f"correct the path, or create {created} with --autotune-dump={place}")
        self._created = created

    def for_cache_of_test(self) -> CacheError:
        """Return the error for a cache that a single test loads, which an update creates."""
        remedy = f"correct the path, or create {self._created} with --autotune-update"
        return CacheError(self.place, self.event, remedy)


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised an error, such as the time-out of an alarm.

    Python calls a handler between any two of its instructions, also inside of this package. The error belongs to the
    test that set the alarm.
    """
    handler_codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        function = getattr(handler, "__func__", handler)
        handler_codes.add(getattr(function, "__code__", None))
    return any(frame.f_code in handler_codes for frame, _ in traceback.walk_tb(error.__traceback__))
