"""What a process has to say to the user, and the guard: an error of ours costs a line of it, never a test.

The ini value ``autotune_debug`` has the guard write the traceback of each error to standard error, too.
"""

from __future__ import annotations

import inspect
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import CodeType, FunctionType, MethodType
from typing import TypeVar

from pytest_autotune.cache.foreign_text import words_of

_T = TypeVar("_T")


class Notes:
    """The lines of one process for the summary, each once.

    :param debug: write the tracebacks of errors, to standard error as it is now: pytest captures it during tests.
    """

    def __init__(self, debug: bool = False) -> None:
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or which error of ours left a call of it alone.
        self.unhooked: dict[str, str] = {}
        self._debug_to = os.dup(2) if debug else None

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def bypassed(self, tuner: str, reason: str, error: BaseException | None = None) -> None:
        """Note for the user that a tuner, or a part of one, could not be hooked."""
        self._debug(error)
        self.unhooked[tuner] = reason
        self.note(f"{tuner} was bypassed: {reason}")

    def error(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours in one line: it must never fail a test, or the run."""
        self._debug(error)
        self.note(f"{tuner}: {_words(where, error)}")

    def went_wrong(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours for which a call was tuned without being counted: it fails a limit on misses."""
        self.error(tuner, where, error)
        self.unhooked.setdefault(tuner, _words(where, error))

    def call_bypassed(self, tuner: str, where: str, error: BaseException) -> str:
        """The same of an error that left the call to its tuner.

        :returns: the error in words.
        """
        self._debug(error)
        words = _words(where, error)
        self.note(f"{tuner}: {words}; that call was left to {tuner}, and not recorded")
        self.unhooked.setdefault(tuner, words)
        return words

    @contextmanager
    def guard(self, tuner: str, where: str) -> Iterator[None]:
        """Note an error of ours that is raised inside, and go on after it.

        :param where: names what is done inside, for the line.
        :raises BaseException: what ends the test or the run: Ctrl-C, a time-out.
        """
        try:
            yield
        except BaseException as error:  # an adapter may exit, or skip
            if is_from_outside(error):
                raise
            self.error(tuner, where, error)

    @contextmanager
    def guarded(self, tuner: str, held: AbstractContextManager[_T], otherwise: _T) -> Iterator[_T]:
        """Hold something of ours; ``otherwise`` is given where it cannot be had. What is raised inside passes."""
        value, exits = otherwise, ExitStack()
        with self.guard(tuner, "the session"):
            value = exits.enter_context(held)
        try:
            yield value
        finally:
            with self.guard(tuner, "the session"):
                exits.close()

    def _debug(self, error: BaseException | None) -> None:
        if self._debug_to is not None and error is not None:
            os.write(self._debug_to, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))


def is_from_outside(error: BaseException) -> bool:
    """Whether an error that came through an adapter is none of its own: Ctrl-C, or what a handler of a signal raised.

    pytest-timeout's handler raises ``pytest.fail``, wherever the test is.
    """
    handlers = {code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return isinstance(error, KeyboardInterrupt) or any(code in handlers for code, _ in frames_of(error))


def frames_of(error: BaseException) -> Iterator[tuple[CodeType, str]]:
    """Where an error came through below the function that caught it: code, and name of its module."""
    found = error.__traceback__.tb_next if error.__traceback__ is not None else None
    while found is not None:
        yield found.tb_frame.f_code, str(found.tb_frame.f_globals.get("__name__", ""))
        found = found.tb_next


def code_of(value: object) -> CodeType | None:
    """The code of a function; None for anything else."""
    # Not isinstance: it asks proxies for their class, which may run code of theirs.
    function = value.__func__ if type(value) is MethodType else value
    return inspect.unwrap(function).__code__ if type(function) is FunctionType else None


def in_words(error: BaseException) -> str:
    """An error in one line: its class, and the first line of what it says."""
    first = next((line.strip() for line in words_of(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _words(where: str, error: BaseException) -> str:
    return " ".join(f"error in {where}: {type(error).__name__}: {words_of(error)}".split())
