"""Why candidates of Triton fail, and whether they will again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from pytest_autotune.tuners.shared.candidates import clear_tracebacks, error_line
from pytest_autotune.tuners.triton.internals import benchmark, compiler


@contextmanager
def noted_failures(
    autotuner: Any, failed: dict[Any, BaseException], tries: Callable[[int], object] = lambda number: None
) -> Iterator[None]:
    """Note why a candidate failed, which Triton itself forgets.

    :param failed: gets the error of each candidate whose benchmark raised one.
    :param tries: called before each candidate, with its number from 1.
    """
    original = autotuner.do_bench
    numbers = count(1)

    def noting(kernel_call: Callable[[], object], *args: Any, **kwargs: Any) -> object:
        tries(next(numbers))
        try:
            return original(kernel_call, *args, **kwargs)
        except Exception as error:
            failed[benchmark.candidate_of(kernel_call)] = error
            raise

    autotuner.do_bench = noting
    try:
        yield
    except BaseException:
        failed.clear()  # what is raised keeps its frames, and they are not to lead back to it
        raise
    finally:
        autotuner.do_bench = original
    for error in failed.values():  # none of them is raised any more
        clear_tracebacks(error)


def fails_again(error: BaseException) -> bool:
    """Whether a candidate that failed so will fail so in the next run, too, as far as the error shows.

    What Triton's compiler refuses, what needs more than the device has, and a call that is wrong will.
    Not an error of the device or of its driver, and not a lack of memory, whoever has taken it.
    """
    causes = (error, error.__cause__)
    if any(isinstance(one, (MemoryError, OSError)) or type(one).__module__.startswith("torch") for one in causes):
        return False
    return isinstance(error, (TypeError, ValueError, KeyError)) or compiler.is_refusal(error)


def failure_text(error: BaseException) -> str:
    """An error in one line: Triton's messages begin with the source and end with what is wrong."""
    return error_line(error, str(getattr(error, "error_message", None) or ""))
