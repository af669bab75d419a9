"""What tests reach by name, without calling anything: functions, classes and modules, as their code names them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

from pytest_autotune.tuners.shared.functions import closure_cells, layers, names_in, of_library

#: So many things are looked at.
MOST = 100_000
_CONTAINERS = (list, tuple, set, frozenset)
_LARGEST = 1000
#: What is in objects that Python makes of functions.
_MADE_OF: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset"),
}
_PLAIN = (str, bytes, int, float, bool, type(None))


def reached(tests: Iterable[Iterable[object]], is_wanted: Callable[[Any], bool]) -> list[Any]:
    """What is wanted among all that tests can reach by name, what the first test reaches first.

    :param tests: for each test, the functions and values that it is made of.
    :param is_wanted: of any object; asks it nothing.
    """
    walk = _Walk()
    found = []
    for roots in tests:
        found += [one for one in walk.from_(roots) if is_wanted(one)]
    return found


class _Walk:
    """Looks at everything once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._kept: list[object] = []  # a number of an object that has gone might be another's

    def from_(self, roots: Iterable[object]) -> Iterator[object]:
        queue = deque(roots)
        while queue:
            value = queue.popleft()
            if id(value) in self._seen or type(value) in _PLAIN:
                continue
            if len(self._seen) >= MOST:
                return
            self._seen.add(id(value))
            self._kept.append(value)
            yield value
            queue.extend(self._next(value))

    def _next(self, value: Any) -> Iterator[object]:
        kind = type(value)
        if kind is FunctionType:
            if not of_library(value):
                yield from self._of_function(value)
        elif kind in _MADE_OF:
            yield from (getattr(value, name) for name in _MADE_OF[kind])
        elif kind is partial:
            yield from (value.func, *value.args, *value.keywords.values())
        elif issubclass(kind, type):
            if not of_library(value):
                yield from value.__mro__[1:]
                yield from list(vars(value).values())
        elif kind in _CONTAINERS or issubclass(kind, tuple):
            yield from list(value)[:_LARGEST]
        elif kind is dict:
            yield from list(value.values())[:_LARGEST]
        elif kind is not ModuleType:
            inside = _own_attributes(value)
            if {"fn", "py_func", "__wrapped__"} & inside.keys():
                yield from list(layers(value))[1:]
            elif not of_library(kind):
                yield kind

    def _of_function(self, function: FunctionType) -> Iterator[object]:
        names = list(names_in(function.__code__))
        cells = closure_cells(function)
        scope: Mapping[str, Any] = {**function.__globals__, **cells}
        yield from (scope[name] for name in names if name in scope)
        for some in (scope, sys.modules):  # what it imports when it runs, too
            for module in (some.get(name) for name in names):
                if type(module) is ModuleType:
                    yield from self._attributes(module, names)
        yield from cells.values()
        yield from (function.__defaults__ or ())
        yield from (getattr(function, "__wrapped__", None),)

    def _attributes(self, module: ModuleType, names: Iterable[str]) -> Iterator[object]:
        """What code with these names may take from a module, and from modules in it."""
        queue = [module]
        done = set()
        while queue:
            here = queue.pop()
            if id(here) in done or of_library(here):
                continue
            done.add(id(here))
            for name in names:
                value = vars(here).get(name)
                if type(value) is ModuleType:
                    queue.append(value)
                elif value is not None:
                    yield value


def _own_attributes(value: object) -> Mapping[str, Any]:
    """Not what an object says that it has: to ask proxies may run code of theirs."""
    for kind in type(value).__mro__:
        attributes = vars(kind).get("__dict__")
        if attributes is not None:
            return attributes.__get__(value) if type(attributes) is GetSetDescriptorType else {}
    return {}
