"""What a caller says of a problem: its key, encoded, and the source that its choice rests on.

A digest of source follows names, by the rule of :mod:`pytest_autotune.tuners.shared.source_digest`. Left out besides is
what belongs to one call: values in closures and defaults, the arguments of a ``partial``, the object of a method.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.foreign_text import one_line, words_of
from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.tuners.shared.code_text import code_text, function_text
from pytest_autotune.tuners.shared.functions import of_library, python_function
from pytest_autotune.tuners.shared.source_digest import (
    digest,
    source_digest,
    source_parts,
    stable_value,
    used_by,
)

#: Reading source takes milliseconds; a function's does not change while it lives.
_digests: WeakKeyDictionary[object, str | None] = WeakKeyDictionary()
#: Characters of what is said of a key, or of why it fails.
_LONGEST = 200


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


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    return 1 << (n - 1).bit_length() if n > 1 else 1


def multiple_of(n: int, k: int) -> int:
    """The smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: when ``n`` is negative or ``k`` is not positive.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    return -(-n // k) * k


class KeyArgumentError(TypeError):
    """A caller's key is none, or looking at a part of it fails."""


def key_values(key: object) -> tuple[Value, ...]:
    """A caller's ``key=``, in its order.

    :raises KeyArgumentError: when it is no mapping from names, or a value fails as it is looked at.
    :raises UncacheableError: when a value has no stable form.
    """
    return tuple(_value(name, value) for name, value in _parts(key))


def stable_values(key: object) -> tuple[Value, ...]:
    """Those of :func:`key_values` that have a stable form: they tell problems apart that cannot be kept."""
    values = []
    for name, value in _parts(key):
        with suppress(UncacheableError):
            values.append(_value(name, value))
    return tuple(values)


def _parts(key: object) -> list[tuple[str, object]]:
    parts = {} if key is None else key
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        raise KeyArgumentError(f"key= takes a mapping of names to values, not a {type(key).__name__}")
    return [(name, parts[name]) for name in parts]


def _value(name: str, value: object) -> Value:
    try:
        return stable_value(name, value, carried=False)
    except UncacheableError:
        raise
    except Exception as error:
        words = one_line(f"{type(error).__name__}: {words_of(error)}", _LONGEST)
        raise KeyArgumentError(f"key={{{name!r}: …}} cannot be encoded: {words}") from None
