"""What functions and classes set, by their code: it says nothing of their source, and may change at any time."""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import CodeType

from pytest_autotune.tuners.shared.source.functions import python_function
from pytest_autotune.tuners.shared.source.libraries import of_library

_BEFORE_USE = ("__init__", "__new__", "__post_init__")


@lru_cache(maxsize=256)
def attributes_of(cls: type) -> tuple[frozenset[str], frozenset[str]]:
    """The names of attributes that a class's own methods use, and of those that they set after it was made."""
    used: set[str] = set()
    changed: set[str] = set()
    for base in cls.__mro__:
        if of_library(base):
            continue
        for name, method in vars(base).items():
            if (function := python_function(method)) is None:
                continue
            for code in nested(function.__code__):
                used.update(code.co_names)
                if name not in _BEFORE_USE:
                    changed.update(set_by(code, ("STORE_ATTR", "DELETE_ATTR")))
    return frozenset(used), frozenset(changed)


def nested(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions inside."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


def set_by(code: CodeType, operations: Collection[str]) -> set[str]:
    """The names that some operations of code are about, such as ``STORE_ATTR``."""
    return {str(step.argval) for step in dis.get_instructions(code) if step.opname in operations}
