"""The one guard around what adapters put in place of a tuner's functions: an error of theirs never fails a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.run.notes import code_of, frames_of
from pytest_autotune.run.policy import Refusal
from pytest_autotune.run.session import Session

_Attribute = tuple[Any, str]
_IS_GUARDED = "_pytest_autotune_guarded"


def guarded(
    replacement: Callable[..., Any], original: Callable[..., Any], run: Session, tuner: str, library: str = ""
) -> Any:
    """A function that calls ``replacement``, and where that fails by itself the tuner's ``original`` instead.

    Errors that the tuner raises are none of the adapter's and pass: those that come through ``original`` or through
    a function among its arguments, and in a search those that come through any function of the tuner's library.
    So do a refusal and what is no ``Exception``: Ctrl-C, ``pytest.fail``. Where a miss is an error, so is a call that
    could not be looked up.

    :param tuner: whose adapter it is; reported with the error, once.
    :param library: the top package of the tuner; that of ``original``, if empty.
    """
    if hasattr(replacement, _IS_GUARDED):
        return replacement
    library = library or (original.__module__ or "").partition(".")[0]
    own = replacement.__module__

    @wraps(replacement)
    def call(*args: Any, **kwargs: Any) -> Any:
        searches = run.searches
        try:
            return replacement(*args, **kwargs)
        except Refusal:
            raise
        except Exception as error:
            frames = list(frames_of(error))
            theirs = {code_of(function) for function in (original, *args, *kwargs.values())} - {None}
            if any(code in theirs for code, _ in frames):
                raise
            modules = {module for _, module in frames} - {own}
            if run.searches > searches and any(module.partition(".")[0] == library for module in modules):
                raise
            run.not_asked(tuner, f"{getattr(original, '__name__', original)}()", error)
        return original(*args, **kwargs)

    setattr(call, _IS_GUARDED, True)
    return call


class Replaced:
    """What an adapter replaces in its tuner's module, and in the classes that this defines, while it hooks it.

    Found by comparing before and after, so that it holds for adapters that know nothing of it.
    """

    def __init__(self, library: ModuleType) -> None:
        self._before = dict(_functions(library))
        self._changed: dict[_Attribute, tuple[object, object]] = {}

    def hooked(self) -> None:
        """Remember what was replaced since this was made."""
        for (owner, name), before in self._before.items():
            now = vars(owner).get(name)
            if now is not before and now is not None:
                self._changed[owner, name] = before, now
        self._before = {}

    def guard(self, run: Session, tuner: str) -> None:
        """Put the guard around each function that was replaced by another one.

        :raises TypeError: where one was replaced by what cannot be called.
        """
        for (owner, name), (before, replacement) in self._changed.items():
            if not callable(replacement):
                raise TypeError(f"{name}() was replaced by {type(replacement).__name__}, which cannot be called")
            if not inspect.isfunction(replacement) and isinstance(owner, type):
                continue  # as a method, it is called in a way of its own
            function = guarded(replacement, before, run, tuner)  # type: ignore[arg-type]
            setattr(owner, name, function)
            self._changed[owner, name] = before, function

    def put_back(self) -> None:
        """Put back the functions that are still replaced."""
        for (owner, name), (before, replacement) in self._changed.items():
            if vars(owner).get(name) is replacement:
                setattr(owner, name, before)
        self._changed = {}


def _functions(library: ModuleType) -> Iterator[tuple[_Attribute, FunctionType]]:
    classes = [value for value in vars(library).values() if isinstance(value, type)]
    for owner in (library, *(cls for cls in classes if cls.__module__ == library.__name__)):
        for name, value in list(vars(owner).items()):
            if inspect.isfunction(value):
                yield (owner, name), value
