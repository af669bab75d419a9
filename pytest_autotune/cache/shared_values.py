"""What is made of values, made once for all that are equal: a cache repeats few of them in many entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from itertools import count
from typing import Generic, TypeAlias, TypeVar

from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Scalar, Value

_T = TypeVar("_T")

#: Stands for an identity, and equals only what stands for the same one.
FastIdentity: TypeAlias = "tuple[object, ...]"

# So many objects are known by themselves: enough for what a file was read into, and no more than some megabytes.
_MOST_OBJECTS = 20_000


class TooManyError(Exception):
    """What would be remembered of different values would take more memory than it may."""


class OncePerValue(Generic[_T]):
    """Makes something of a value, once for all that are equal.

    A value's own hash and equality are functions of Python and take several times as long as those of its parts.
    Entries that were read together share their values: these are known by the object.

    :param make: what it makes is never false.
    :param most: so many different values; for another one, :class:`TooManyError` is raised.
    """

    def __init__(self, make: Callable[[Value], _T], most: float = math.inf) -> None:
        self._make = make
        self._most = most
        self._of_equal: dict[tuple[str, Scalar, type, str], _T] = {}
        self._of_object: dict[int, _T] = {}
        self._objects: list[Value] = []

    def each(self, values: tuple[Value, ...]) -> list[_T]:
        """What is made of each of the values."""
        known = self._of_object.get
        return [known(id(value)) or self._of(value) for value in values]

    def _of(self, value: Value) -> _T:
        scalar = value.value
        cls = scalar.__class__
        # Of floats 0.0 and -0.0 are equal, and what is not a number equals nothing.
        parts = value.name, repr(scalar) if cls is float else scalar, cls, value.type
        made = self._of_equal.get(parts)
        if made is None:
            if len(self._of_equal) >= self._most:
                raise TooManyError
            made = self._of_equal[parts] = self._make(value)
        if len(self._objects) < _MOST_OBJECTS:
            self._of_object[id(value)] = made
            self._objects.append(value)  # as long as it is there, no other one has its id
        return made


def in_all(caches: Sequence[Cache]) -> Set[int]:
    """The ``id()`` of each entry that all of the caches share: caches that were read with one ``AsRead`` do."""
    first, *others = caches
    return {id(entry) for entry in first.entries}.intersection(*[map(id, cache.entries) for cache in others])


class Identities:
    """Stands for problems and fingerprints, so that those of many entries compare fast.

    The same object has to be used for all that is compared.

    :param most: so many different values are numbered, each of which takes some hundred bytes; an entry with another
        one, which no equal entry lacks, stands for itself.
    """

    def __init__(self, most: float = math.inf) -> None:
        numbers = count(1)
        self._values = OncePerValue(lambda value: next(numbers), most)
        self._devices: dict[Device, int] = {}

    def __call__(self, entry: Entry) -> FastIdentity:
        """The identity of an entry."""
        try:
            return *self.problem(entry.problem), tuple(self._values.each(entry.fingerprint))
        except TooManyError:
            return entry.identity

    def problem(self, problem: Problem) -> FastIdentity:
        """The identity of a problem."""
        device = self._devices.setdefault(problem.device, len(self._devices))
        return problem.tuner, problem.kernel, device, tuple(self._values.each(problem.key))
