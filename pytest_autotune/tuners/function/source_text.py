"""The text that a hand-written tuner's choice rests on, as far as it can be had."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.function.carried import Bound, frozen_text, labels_of, reading
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.functions import python_function
from pytest_autotune.tuners.shared.source.source_digest import source_digest, source_parts
from pytest_autotune.tuners.shared.source.tokens import code_text

_Read = tuple["str | None", tuple[str, ...]]
#: Reading and splitting source takes milliseconds; a function's does not change while it lives.
_read: WeakKeyDictionary[object, _Read] = WeakKeyDictionary()


def left_out_of(source: object) -> tuple[str, ...]:
    """The globals that a function uses and that are not digested because they can change: ``"CONFIG (dict)"``."""
    kernel = None if isinstance(source, (str, Path, ModuleType)) else _kernel_of(source)
    return () if kernel is None else _read_of(kernel)[1]


def source_text(source: object) -> str | None:
    """What stands for a source in a fingerprint; None where it has none of its own.

    :param source: a function or kernel, text, the path of a file, or a module.
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
    kernel = _kernel_of(source)
    if kernel is None:
        raise TypeError(f"source= takes functions, texts, paths and modules, not {source!r}")
    return _read_of(kernel)[0]


def parts_of(source: object) -> dict[str, str]:
    """What a source consists of, by name, each with a digest of it alone; see :func:`source_text`."""
    if isinstance(source, (str, Path, ModuleType)):
        name = "text" if isinstance(source, str) else source.name if isinstance(source, Path) else source.__name__
        return {name: source_text(source) or ""}
    kernel = _kernel_of(source)
    try:
        return {} if kernel is None else source_parts(kernel, frozen_text, objects=False)
    except UnportableError:
        return {}


def _kernel_of(source: object) -> object | None:
    """A function, or what its decorators made of it; None for what is neither."""
    while isinstance(source, (partial, Bound)):
        source = source.func if isinstance(source, partial) else source.function
    if inspect.ismethod(source):
        source = source.__func__
    return None if python_function(source) is None else source


def _read_of(kernel: object) -> _Read:
    try:
        known = _read.get(kernel)
    except TypeError:  # it takes no weak references, or has no hash
        return _digest_of(kernel)
    if known is None:
        known = _read[kernel] = _digest_of(kernel)
    return known


def _digest_of(kernel: object) -> _Read:
    """The digest of a function, and what it uses that can change."""
    left_out: set[str] = set()

    def unstable(name: str, user: object, value: object) -> None:
        left_out.update(labels_of(name, user, value))

    try:
        constant = partial(frozen_text, unstable=unstable, read=reading(python_function(kernel)))
        return source_digest(kernel, constant, unstable=unstable, objects=False), tuple(sorted(left_out))
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
    return tuple(callback for callback in callbacks if callback is not None and _kernel_of(callback) is not None)
