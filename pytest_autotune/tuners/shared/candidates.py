"""What searches leave behind, said alike for every tuner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, TypeVar

from pytest_autotune.cache.quantities import round_significant

_Error = TypeVar("_Error", bound=BaseException)

#: Digits of a time that are kept: more are noise.
DIGITS = 4
#: Why a search recorded nothing that found nothing that works, for reasons that may be gone the next time.
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


def rounded_us(time_us: float, digits: int = DIGITS) -> float:
    """A time in microseconds as entries hold it; with more digits where times are compared with each other later."""
    return round_significant(time_us, digits)


def does_not_compile(error: str) -> str:
    """Why a choice that was loaded, or picked by a mode, is rejected; ``error`` is one line."""
    return f"the choice does not compile: {error}"


def clear_tracebacks(error: _Error) -> _Error:
    """An error that has forgotten where it was raised, and so have those that led to it.

    A frame holds what its function worked on, all tensors of a call, and leads to the frames of its callers. Where one
    of them holds the error, that is a circle: all of it would stay until the garbage collector comes.
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
