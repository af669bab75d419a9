"""The configurations that a hand-written tuner may choose from, and what it raises where none can be chosen."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.tuners.function.identity import source_text, stable_part
from pytest_autotune.tuners.shared.source_digest import digest


class InvalidConfiguration(Exception):
    """Raised by a caller's callbacks: this configuration cannot be used here. The search goes on without it."""


class TuningError(RuntimeError):
    """No configuration could be chosen; the message says for which problem, and why.

    :param reasons: why each candidate failed, where all did and will again; else empty.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


#: A product of at most this many combinations differs from others by the configurations it
#: comes to, whatever its constraint looks like; a larger one by its axes and its constraint's source.
ENUMERABLE = 65536


@dataclass(frozen=True)
class Configuration:
    """One configuration: the caller's own object, and the params that name it."""

    params: tuple[Value, ...]
    config: Any = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(map(str, self.params))


class SpaceError(ValueError):
    """A space cannot be searched: it is empty, or its constraint failed."""


class Space(ABC):
    """A set of configurations, in a fixed order and each of them once."""

    @abstractmethod
    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration."""

    @abstractmethod
    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        """The configuration with these params; None where there is none."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        """The values that each param may take; not every combination need be a configuration."""

    @property
    def size(self) -> int:
        """How many combinations of the axes' values there are: the number of configurations, or more."""
        return math.prod(map(len, self.axes.values()))

    @property
    def can_be_listed(self) -> bool:
        """Whether it is small enough for all its configurations to be looked at."""
        return self.size <= ENUMERABLE

    @cached_property
    def digest(self) -> str:
        """Equal for spaces of the same configurations, in any order."""
        return digest("\n".join(sorted(_text(configuration.params) for configuration in self)))

    @cached_property
    def only(self) -> Configuration | None:
        """The configuration of a space that has just one; an empty one is an error."""
        first = list(itertools.islice(self, 2))
        if not first:
            raise SpaceError("the space of configurations is empty: none is listed, or where= allows none")
        return first[0] if len(first) == 1 else None

    def sample(self, number: int, seed: str) -> list[Configuration]:
        """Every configuration; of a space too large to be listed at most ``number``, the same ones for a seed."""
        if self.can_be_listed:
            return list(self)
        chance = random.Random(seed)
        found: dict[tuple[Value, ...], Configuration] = {}
        for _ in range(ENUMERABLE):
            one = self.find(tuple(chance.choice(values) for values in self.axes.values()))
            if one is not None:
                found[one.params] = one
            if len(found) == number:
                break
        return list(found.values())


class ListedSpace(Space):
    """Configurations that were listed one by one."""

    def __init__(self, configs: Iterable[object]) -> None:
        self._by_params: dict[tuple[Value, ...], Configuration] = {}
        for config in configs:
            params = params_of(config)
            self._by_params.setdefault(params, Configuration(params, config))
        if isinstance(configs, (set, frozenset)):  # their order differs from process to process
            self._by_params = dict(sorted(self._by_params.items(), key=lambda item: _text(item[0])))

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self._by_params.values())

    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        return self._by_params.get(params)

    @property
    def can_be_listed(self) -> bool:
        return True

    @cached_property
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        values: dict[str, dict[Value, None]] = {}
        for params in self._by_params:
            for value in params:
                values.setdefault(value.name, {})[value] = None
        return {name: tuple(values[name]) for name in sorted(values)}


class ProductSpace(Space):
    """Every combination of the values of named axes that a constraint allows."""

    def __init__(self, axes: Mapping[str, Iterable[object]], where: Callable[[dict[str, Any]], object] | None) -> None:
        self._values = {name: {stable_part(name, value): value for value in values} for name, values in axes.items()}
        self._where = where

    def __iter__(self) -> Iterator[Configuration]:
        found = map(self.find, itertools.product(*self._values.values()))
        return (one for one in found if one is not None)

    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        by_name = {value.name: value for value in params}
        if by_name.keys() != self._values.keys() or len(by_name) != len(params):
            return None
        if not all(by_name[name] in values for name, values in self._values.items()):
            return None
        config = {name: values[by_name[name]] for name, values in self._values.items()}
        found = Configuration(tuple(by_name[name] for name in sorted(by_name)), config)
        return found if self._allows(config) else None

    def _allows(self, config: dict[str, Any]) -> bool:
        if self._where is None:
            return True
        try:
            return bool(self._where(dict(config)))
        except Exception as error:
            named = ", ".join(f"{name}={value!r}" for name, value in config.items())
            said = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise SpaceError(f"where= of product() failed for {named}: {said}") from error

    @cached_property
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        return {name: tuple(self._values[name]) for name in sorted(self._values)}

    @cached_property
    def digest(self) -> str:
        if self.can_be_listed:
            return super().digest
        constraint = None if self._where is None else source_text(self._where)
        return digest("\n".join([*map(_text, self.axes.values()), constraint or ""]))


def product(*, where: Callable[[dict[str, Any]], object] | None = None, **axes: Iterable[object]) -> Space:
    """Every combination of the values of named axes: ``product(BLOCK=[16, 32], warps=[4, 8])``.

    Make it once and pass it to every call: its digest is worked out once.

    :param where: says of a combination, as a mapping, whether it is a configuration.
    """
    if not axes:
        raise ValueError("product() takes at least one axis: product(BLOCK=[16, 32])")
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise TypeError(f"product(): the axis {name} takes several values, not {values!r}")
    return ProductSpace({name: tuple(values) for name, values in axes.items()}, where)


def as_space(space: object) -> Space:
    """What a caller passed as ``space=``: a space, a mapping of axes, or configurations one by one."""
    if isinstance(space, Space):
        return space
    try:
        if isinstance(space, Mapping):
            return product(**space)
        if isinstance(space, Iterable) and not isinstance(space, (str, bytes)):
            return ListedSpace(space)
    except UncacheableError as error:
        raise TypeError(f"space=: {error}") from None
    raise TypeError(f"space= takes configurations, or axes by name, not {space!r}")


def params_of(config: object) -> tuple[Value, ...]:
    """The params of a configuration: a mapping, a dataclass, a named tuple or one plain value."""
    parts: Mapping[Any, object]
    if isinstance(config, Mapping):
        parts = config
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    elif isinstance(config, tuple) and hasattr(config, "_asdict"):
        parts = config._asdict()
    else:
        parts = {"config": config}
    if not all(isinstance(name, str) for name in parts):
        raise TypeError(f"space=: a configuration has names that are not text: {config!r}")
    return tuple(stable_part(name, parts[name]) for name in sorted(parts))


def _text(params: Iterable[Value]) -> str:
    return repr([value.encoded for value in params])
