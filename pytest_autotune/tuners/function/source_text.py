"""The source that a hand-written tuner's choice rests on.

A digest of source follows names. It holds the text of a function, that of the functions and classes of the caller's
that it names, and so on, and the immutable values that they name: numbers, text, dtypes, members of an enum, tuples
and frozen dataclasses of these. Left out by its kind is what may change while tests run: lists, dicts, sets, all
other objects, names that a function sets itself; and what belongs to one call: values in closures and defaults, the
arguments of a ``partial``, the object of a method. What matters of that belongs into the key.
"""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.shared.code_text import code_text, function_text
from pytest_autotune.tuners.shared.functions import of_library, python_function
from pytest_autotune.tuners.shared.source_digest import source_digest, source_parts, used_by
from pytest_autotune.tuners.shared.values import digest

#: Reading source takes milliseconds; a function's does not change while it lives.
_digests: WeakKeyDictionary[object, str | None] = WeakKeyDictionary()


def sources_of(source: object, *callbacks: object) -> tuple[object, ...]:
    """What a choice's source is: what the caller says, else the callbacks.

    A lambda stands for the functions that it calls: two tests of one problem write one each. Where it calls none of
    the caller's, it stands for itself.
    """
    if source is not None:
        return tuple(source) if isinstance(source, (list, tuple)) else (source,)
    found: list[object] = []
    for kernel in map(_kernel_of, callbacks):
        if (function := python_function(kernel)) is not None:
            found += (_called_by(function) if function.__name__ == "<lambda>" else ()) or (kernel,)
    return tuple(found)


def _called_by(function: FunctionType) -> tuple[object, ...]:
    try:
        names = function_text(function).names
    except UncacheableError:
        return ()
    used = [value for _, value in used_by(function, names)]
    if any(isinstance(one, type) and not of_library(one) for one in used):  # what it does with a class is its own
        return ()
    return tuple(one for one in used if (inner := python_function(one)) is not None and not of_library(inner))


def source_text(source: object) -> str | None:
    """What stands for a source in a fingerprint; None where it has none of its own.

    :param source: a function or kernel, text, the path of a file, or a module.
    :raises OSError: when a file cannot be read.
    :raises TypeError: for anything else.
    """
    if isinstance(source, str):
        return digest(source)
    if isinstance(source, Path):
        # Line ends are a setting of a checkout, not of the source.
        return digest(source.read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "surrogateescape"))
    if isinstance(source, ModuleType):
        return _module_digest(source)
    kernel = _kernel_of(source)
    if python_function(kernel) is None:
        raise TypeError(f"source= takes functions, texts, paths and modules, not {source!r}")
    try:
        if kernel not in _digests:
            _digests[kernel] = _digest_or_none(kernel)
        return _digests[kernel]
    except TypeError:  # it takes no weak references, or has no hash
        return _digest_or_none(kernel)


def parts_of(source: object) -> dict[str, str]:
    """What a source consists of, by name, each with a digest of it alone; see :func:`source_text`."""
    if isinstance(source, (str, Path, ModuleType)):
        name = "text" if isinstance(source, str) else source.name if isinstance(source, Path) else source.__name__
        return {name: source_text(source) or ""}
    try:
        return source_parts(_kernel_of(source), carried=False)
    except UncacheableError:
        return {}


def _digest_or_none(kernel: object) -> str | None:
    try:
        return source_digest(kernel, carried=False)
    except UncacheableError:
        return None


def _kernel_of(source: object) -> object:
    """A function, or what its decorators made of it, without the arguments that it is called with."""
    while isinstance(source, partial):
        source = source.func
    if inspect.ismethod(source):
        source = source.__func__
    return type(source).__call__ if python_function(source) is None and callable(source) else source


@lru_cache(maxsize=256)
def _module_digest(module: ModuleType) -> str | None:
    try:
        return digest(code_text(inspect.getsource(module)))
    except (OSError, TypeError, SyntaxError):
        return None
