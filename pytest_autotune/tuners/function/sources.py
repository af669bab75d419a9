"""The text that a hand-written tuner's choice rests on, as far as it can be had."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.function.carried import Bound, frozen_text
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.functions import python_function
from pytest_autotune.tuners.shared.source.source_digest import source_digest
from pytest_autotune.tuners.shared.source.tokens import code_text
from pytest_autotune.tuners.shared.values import constant_text

#: Reading and splitting source takes milliseconds; a function's does not change while it lives.
_read: WeakKeyDictionary[FunctionType, tuple[str | None, tuple[str, ...]]] = WeakKeyDictionary()


def left_out_of(source: object) -> tuple[str, ...]:
    """The globals that a function uses and that are not digested because they can change: ``"CONFIG (dict)"``."""
    function = None if isinstance(source, (str, Path, ModuleType)) else _function_of(source)
    return _read[function][1] if function is not None and function in _read else ()


def source_text(source: object) -> str | None:
    """What stands for a source in a fingerprint; None where it has none of its own.

    :param source: a function or kernel, text, the path of a file, or a module. A lambda's
        source is not its own: Python knows only the lines around it.
    :raises OSError: when a file cannot be read.
    :raises TypeError: for anything else.
    """
    if isinstance(source, str):
        return _text_digest(source)
    if isinstance(source, Path):
        status = source.stat()
        return _file_digest(source, status.st_mtime_ns, status.st_size)
    if isinstance(source, ModuleType):
        return _module_digest(source)
    function = _function_of(source)
    if function is None:
        raise TypeError(f"source= takes functions, texts, paths and modules, not {source!r}")
    if function not in _read:
        _read[function] = _function_digest(function)
    return _read[function][0]


def _function_of(source: object) -> FunctionType | None:
    while isinstance(source, (partial, Bound)):
        source = source.func if isinstance(source, partial) else source.function
    if inspect.ismethod(source):
        source = source.__func__
    return python_function(source)


def _function_digest(function: FunctionType) -> tuple[str | None, tuple[str, ...]]:
    """The digest of a function, and what it uses that can change."""
    if function.__name__ == "<lambda>":
        return None, ()
    left_out: set[str] = set()

    def constant(value: object) -> str | None:
        text = frozen_text(value)
        if text is None and not hasattr(value, "dtype"):
            name = next((name for name, found in function.__globals__.items() if found is value), "")
            if name or constant_text(value) is not None:
                left_out.add(f"{name or 'a constant of a helper'} ({type(value).__name__})")
        return text

    try:
        return source_digest(function, constant), tuple(sorted(left_out))
    except UnportableError:
        return None, ()


@lru_cache(maxsize=256)
def _text_digest(text: str) -> str:
    return digest(text)


@lru_cache(maxsize=256)
def _file_digest(path: Path, modified_ns: int, size: int) -> str:
    # Line ends are a setting of a checkout, not of the source.
    return digest(path.read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "surrogateescape"))


@lru_cache(maxsize=256)
def _module_digest(module: ModuleType) -> str | None:
    try:
        return digest(code_text(inspect.getsource(module)))
    except (OSError, TypeError, SyntaxError):
        return None


def callbacks_with_source(*callbacks: Callable[..., object] | None) -> tuple[object, ...]:
    """Those of a call's callbacks that have a source of their own."""
    return tuple(callback for callback in callbacks if callback is not None and _function_of(callback) is not None)
