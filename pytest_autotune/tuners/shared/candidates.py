"""The times, failures and errors of candidates, in the same words for every tuner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, TypeVar

_Error = TypeVar("_Error", bound=BaseException)

#: The reason why a search recorded nothing, if every candidate failed and may work in the next run.
EVERY_CANDIDATE_FAILED = "every candidate failed"


class LaunchError(Exception):
    """An error of the user's kernel in a launch that pytest-autotune made.

    The guard around an adapter's lookup raises ``kernel_error`` in place of it. Any other error is one of
    pytest-autotune.
    """

    def __init__(self, kernel_error: Exception) -> None:
        super().__init__(str(kernel_error))
        self.kernel_error = kernel_error

    def raise_kernel_error(self) -> NoReturn:
        """Raise the kernel's error, as if it had never been wrapped."""
        kernel_error = self.kernel_error
        context = kernel_error.__context__
        try:
            raise kernel_error
        finally:
            kernel_error.__context__ = context  # Python has put the LaunchError there
            # The error's traceback holds this frame. A circle would keep the tensors of the call.
            del kernel_error, context, self


def does_not_compile(error: str) -> str:
    """Return the reason for which an adapter rejects a choice that a cache or a mode offered.

    :param error: the error in one line.
    """
    return f"the choice does not compile: {error}"


def clear_tracebacks(error: _Error) -> _Error:
    """Return an error after its traceback, and the tracebacks of the errors that led to it, are removed.

    A traceback holds frames, and a frame holds all tensors of a call. If a frame also holds the error, this is a
    circle, and the tensors would stay until the garbage collector runs.
    """
    for linked in chained_errors(error):
        linked.__traceback__ = None
    return error


def chained_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that led to it."""
    remaining: list[BaseException | None] = [error]
    seen: set[int] = set()
    while remaining:
        linked = remaining.pop()
        if linked is not None and id(linked) not in seen:
            seen.add(id(linked))
            yield linked
            remaining += [linked.__cause__, linked.__context__, *getattr(linked, "exceptions", ())]
