"""What a process has to say to the user, and the guard that makes a line of an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from pytest_autotune.cache.foreign_text import words_of

_T = TypeVar("_T")


class Notes:
    """The lines of one process for the summary, each once."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or which error of ours left a call of it alone.
        self.unhooked: dict[str, str] = {}

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def left_alone(self, tuner: str, reason: str) -> None:
        """Note for the user that a tuner, or a part of one, could not be hooked."""
        self.unhooked[tuner] = reason
        self.note(f"{tuner} was left alone: {reason}")

    def error(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours in one line: it must never fail a test, or the run."""
        self.note(f"{tuner}: {_words(where, error)}")

    def went_wrong(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours for which a call was tuned without being counted: it fails a limit on misses."""
        self.error(tuner, where, error)
        self.unhooked.setdefault(tuner, _words(where, error))

    def call_left_alone(self, tuner: str, where: str, error: BaseException) -> str:
        """The same of an error that left the call to its tuner.

        :returns: the error in words.
        """
        words = _words(where, error)
        self.note(f"{tuner}: {words}; that call was left to {tuner}, and not recorded")
        self.unhooked.setdefault(tuner, words)
        return words

    @contextmanager
    def guarded(self, tuner: str, held: AbstractContextManager[_T], otherwise: _T) -> Iterator[_T]:
        """Hold something of ours; ``otherwise`` is given where it cannot be had. What is raised inside passes."""
        with ExitStack() as exits:
            try:
                value = held.__enter__()
            except Exception as error:
                self.error(tuner, "the door", error)
                value = otherwise
            else:
                exits.callback(self._let_go, tuner, held)
            yield value

    def _let_go(self, tuner: str, held: AbstractContextManager[object]) -> None:
        try:
            held.__exit__(None, None, None)
        except Exception as error:
            self.error(tuner, "the door", error)


def in_words(error: BaseException) -> str:
    """An error in one line: its class, and the first line of what it says."""
    first = next((line.strip() for line in words_of(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _words(where: str, error: BaseException) -> str:
    return " ".join(f"error in {where}: {type(error).__name__}: {words_of(error)}".split())
