"""What the functions of a hand-written tuner carry with them, beside their text.

A closure, the arguments of a ``partial``, the object of a bound method: two functions of one text that carry
other values ask for other choices. What cannot change is digested. What can change, such as a list that the kernel
appends to, would make a choice stale without an edit: it is named instead, so that the user can put into the key
what matters of it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from types import CodeType, MethodType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.attributes import attributes_of, nested, set_by
from pytest_autotune.tuners.shared.source.functions import closure_cells, python_function
from pytest_autotune.tuners.shared.source.libraries import of_library
from pytest_autotune.tuners.shared.source.source_digest import Unstable, is_code, source_digest, unnoticed
from pytest_autotune.tuners.shared.values import constant_text, refuse, unwrapped

_Named = Iterator[tuple[str, object]]
_SCALARS = (int, float, str, bool, type(None))
_WRITTEN_AS_THEY_ARE = (bytes, complex, range)
_CHANGED = "changed by the kernel"
_RECURSIVE = "recursive"
#: Functions in data -> their digests, or why they have none.
Read = dict[object, "str | UnportableError"]


@dataclasses.dataclass(frozen=True)
class Carried:
    """What functions carry.

    :param digest: of what cannot change; empty where there is nothing.
    :param left_out: what can change, by name and type, sorted: ``"seen (list)"``.
    """

    digest: str = ""
    left_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bound:
    """A callback with the arguments of one call, for which the key stands: of it, only ``function`` is looked at."""

    function: object
    call: Callable[..., object]

    def __call__(self, *own: object) -> object:
        return self.call(*own)


def carried_by(functions: Sequence[object], in_key: Collection[int] = ()) -> Carried:
    """What these functions carry.

    :param in_key: sizes for which the key has a coarser value: they are no part of a choice's identity.
    """
    texts: list[str] = []
    left_out: dict[str, None] = {}
    for function in functions:
        found = []
        for name, value in _values(function):
            text = _text(value, in_key, left_out)
            if text is None:
                left_out[f"{name} ({_kind(value)})"] = None
            elif text:
                found.append(f"{name}: {text}")
        if found:
            texts.append("\n".join(found))
        left_out.update(dict.fromkeys(f"{name} ({_CHANGED})" for name in _rebound(function)))
    return Carried(digest("\n\n".join(texts)) if texts else "", tuple(sorted(left_out)))


def _kind(value: object) -> str:
    return _CHANGED if isinstance(value, _Changing) else type(value).__name__


def frozen_text(value: object, unstable: Unstable = unnoticed, read: Read | None = None) -> str | None:
    """The text of a value that cannot change, the same in every process; None for any other.

    Functions in it stand there without what can change of what they use, as the functions of a tuner do.

    :param unstable: called with that, as by :func:`source_digest`.
    :param read: the functions that were read for the same question, see :func:`reading`.
    """
    if type(value) in _SCALARS:
        return repr(value)
    value = unwrapped(value)
    if isinstance(value, _WRITTEN_AS_THEY_ARE):
        return repr(value)
    return _constant_text(value, unstable, {} if read is None else read)


def reading(function: object) -> Read:
    """Where nothing was read but a function, whose digest goes on: it may use what it is in."""
    return {function: _RECURSIVE}


def _constant_text(value: object, unstable: Unstable, read: Read) -> str | None:
    def left_out(name: str, user: object, value: object) -> None:
        refuse(name, user, value)
        unstable(name, user, value)

    def function_digest(found: object) -> str:
        function = python_function(found)
        if function not in read:  # once, or a table of functions that use it would be read in every order there is
            read[function] = _RECURSIVE
            try:
                constant = partial(_constant_text, unstable=unstable, read=read)
                read[function] = source_digest(found, constant, own_cells=True, unstable=left_out)
            except UnportableError as error:
                read[function] = error
        text = read[function]
        if isinstance(text, UnportableError):
            raise text
        return text

    return constant_text(value, function_digest) if _is_frozen(unwrapped(value)) else None


def _is_frozen(value: object) -> bool:
    """Whether nothing in a value can change, as far as its classes show."""
    if isinstance(value, (tuple, frozenset)):
        return all(_is_frozen(unwrapped(part)) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        is_frozen: bool = type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        return is_frozen and all(
            _is_frozen(unwrapped(getattr(value, field.name))) for field in dataclasses.fields(value)
        )
    return not isinstance(value, (list, dict, set, SimpleNamespace))


def _text(value: object, in_key: Collection[int], left_out: dict[str, None]) -> str | None:
    """What is digested of a value: empty for what needs none, None for what can change.

    :param left_out: gets what a function uses in its turn and can change.
    """
    if type(value) is int and value in in_key:
        return ""
    if python_function(value) is not None:
        return _function_text(value, left_out)
    if is_code(value) or inspect.isbuiltin(value):
        return ""
    text = frozen_text(value, _noting(left_out))
    if text is None and hasattr(value, "dtype") and hasattr(value, "shape"):
        # An array: what is in it is data, and its sizes, which the key may have coarser on purpose, belong there.
        return f"{value.dtype} of {len(value.shape)} dimensions"
    return text


def _function_text(value: object, left_out: dict[str, None]) -> str:
    """What is digested of a function, or of what a decorator made of it, with what that object holds."""
    function = python_function(value)
    if function is None or of_library(function):
        return ""
    unstable = _noting(left_out)
    constant = partial(frozen_text, unstable=unstable, read=reading(function))
    try:
        return source_digest(value, constant, own_cells=True, unstable=unstable, objects=False)
    except UnportableError:
        return ""


def _noting(left_out: dict[str, None]) -> Unstable:
    def unstable(name: str, user: object, value: object) -> None:
        left_out.update(dict.fromkeys(labels_of(name, user, value)))

    return unstable


def labels_of(name: str, user: object, value: object) -> Iterator[str]:
    """How something is named that a function or class uses and that is not digested."""
    if hasattr(value, "dtype") or inspect.isbuiltin(value):
        return
    if not isinstance(user, type) or constant_text(value) is not None:
        yield f"{name} ({type(value).__name__})"


def _values(function: Any) -> _Named:
    """What a callable carries, by name."""
    if isinstance(function, Bound):
        yield from _values(function.function)
    elif isinstance(function, partial):
        yield from _values(function.func)
        yield from ((f"argument {number}", value) for number, value in enumerate(function.args))
        yield from sorted(function.keywords.items())
    elif type(function) is MethodType:
        yield from _values(function.__func__)
        yield from _of_object(function.__self__)
    elif (inner := python_function(function)) is not None:
        rebound = _rebound_names(inner.__code__)
        yield from ((name, value) for name, value in closure_cells(inner).items() if name not in rebound)
        names = inner.__code__.co_varnames[: inner.__code__.co_argcount]
        defaults = inner.__defaults__ or ()
        yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
        yield from sorted((inner.__kwdefaults__ or {}).items())
    elif callable(function) and not inspect.isbuiltin(function) and not isinstance(function, type):
        yield from _of_object(function)


def _of_object(owner: object) -> _Named:
    """The attributes of an object that its class uses and sets nowhere but when it is made."""
    if isinstance(owner, type) or frozen_text(owner) is not None:
        yield "self", owner
        return
    cls: type = type(owner)
    used, changed = attributes_of(cls)
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        if name in used:
            yield f"self.{name}", _Changing(value) if name in changed else value


@dataclasses.dataclass
class _Changing:
    """Stands for an attribute that methods set."""

    value: object


def _rebound(function: Any) -> Iterator[str]:
    """The names outside of a function that it sets itself."""
    while isinstance(function, (Bound, partial, MethodType)):
        function = function.func if isinstance(function, partial) else _inner(function)
    if (inner := python_function(function)) is not None:
        yield from sorted(_rebound_names(inner.__code__))


def _inner(function: Bound | MethodType) -> object:
    return function.function if isinstance(function, Bound) else function.__func__


@lru_cache(maxsize=1024)
def _rebound_names(code: CodeType) -> frozenset[str]:
    own = {name for name in set_by(code, ("STORE_DEREF",)) if name in code.co_freevars}
    return frozenset(own.union(*(set_by(inner, ("STORE_GLOBAL",)) for inner in nested(code))))
