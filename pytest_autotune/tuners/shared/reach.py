"""What tests reach by name, without calling anything: functions, classes and modules, as their code names them."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.shared.functions import names_in, of_library

#: So many things are looked at.
MOST = 100_000


def reached(tests: Iterable[Iterable[object]]) -> Iterator[object]:
    """All that tests, each made of some values, reach, the first test's first; none of it is asked for anything."""
    seen: dict[int, object] = {}  # holds them: a number of an object that has gone might be another's
    for queue in map(deque, tests):
        while queue and len(seen) < MOST:
            value = queue.popleft()
            if id(value) not in seen:
                seen[id(value)] = value
                yield value
                queue.extend(_next(value))


def _next(value: Any) -> list[object]:
    kind = type(value)
    if kind is FunctionType or issubclass(kind, type):
        if of_library(value):
            return []
    elif kind is ModuleType or (kind is dict and "__builtins__" in value):  # of it, code takes what it names
        return []
    return [*(_named(value) if kind is FunctionType else ()), *filter(gc.is_tracked, gc.get_referents(value))]


def _named(function: FunctionType) -> Iterator[object]:
    """What stands under the names in a function's code: among the globals, in modules, and in modules in these."""
    names = list(dict.fromkeys(names_in(function.__code__)))
    scopes: list[Mapping[str, Any]] = [function.__globals__, sys.modules]  # what it imports when it runs, too
    for scope in scopes:
        for one in (scope.get(name) for name in names):
            if type(one) is not ModuleType:
                yield one
            elif not of_library(one) and not any(vars(one) is known for known in scopes):
                scopes.append(vars(one))
