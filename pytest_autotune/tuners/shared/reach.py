"""Lists the functions, classes and modules that tests reach by name. Nothing is called."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.shared.functions import is_library_code, list_names_in_code

#: At most this many objects are looked at.
MAX_OBJECTS = 100_000


def list_reached(tests: Iterable[Iterable[object]]) -> Iterator[object]:
    """Yield all objects that tests reach, those of the first test first.

    :param tests: the functions and values of each test.
    """
    # The dictionary keeps the objects alive: a new object might get the number of one that is gone.
    seen: dict[int, object] = {}
    for test in tests:
        pending = deque(test)
        while pending and len(seen) < MAX_OBJECTS:
            value = pending.popleft()
            if id(value) not in seen:
                seen[id(value)] = value
                yield value
                pending.extend(_list_next(value))


def _list_next(value: Any) -> list[object]:
    """Return the objects that an object refers to, and for a function the values of the names in its code."""
    kind = type(value)
    if kind is FunctionType or issubclass(kind, type):
        if is_library_code(value):
            return []
    elif kind is ModuleType or (kind is dict and "__builtins__" in value):
        # Code takes from a module only the values that it names.
        return []
    reached: list[object] = []
    if kind is FunctionType:
        reached += _list_named_values(value)
    reached += filter(gc.is_tracked, gc.get_referents(value))
    return reached


def _list_named_values(function: FunctionType) -> Iterator[object]:
    """Yield the values of the names in a function's code: in its globals, in modules, and in modules inside these."""
    names = list(dict.fromkeys(list_names_in_code(function.__code__)))
    # The function may import a module when it runs.
    scopes: list[Mapping[str, Any]] = [function.__globals__, sys.modules]
    for scope in scopes:  # grows in the loop
        for name in names:
            value = scope.get(name)
            if type(value) is not ModuleType:
                yield value
            elif not is_library_code(value) and not _has_scope(scopes, value):
                scopes.append(vars(value))


def _has_scope(scopes: Iterable[Mapping[str, Any]], module: ModuleType) -> bool:
    return any(scope is vars(module) for scope in scopes)
