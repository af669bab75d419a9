"""The configurations that a hand-written tuner may choose from, and the errors if it can choose none."""

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
from pytest_autotune.tuners.function.identity import param_value, source_text
from pytest_autotune.tuners.shared.source_digest import digest


class InvalidConfiguration(Exception):
    """A caller's callback raises this: the configuration cannot be used here. The search goes on without it."""


class TuningError(RuntimeError):
    """No configuration could be chosen; the message names the problem and the reason.

    :param reasons: why each candidate failed, if all of them failed and will fail again; else empty.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


#: The digest of a product with at most so many combinations is made of its configurations, whatever its constraint
#: looks like. The digest of a larger product is made of its axes and the source of its constraint.
ENUMERABLE = 65536


@dataclass(frozen=True)
class Configuration:
    """One configuration: the caller's object, and the params that identify it."""

    params: tuple[Value, ...]
    config: Any = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(map(str, self.params))


class SpaceError(ValueError):
    """A space cannot be searched: it is empty, or its constraint failed."""


class Space(ABC):
    """A set of configurations in a fixed order."""

    @abstractmethod
    def __iter__(self) -> Iterator[Configuration]:
        """Yield every configuration."""

    @abstractmethod
    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        """Return the configuration with these params; None if there is none."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        """The values that each param can have. Not every combination need be a configuration."""

    @property
    def size(self) -> int:
        """The number of combinations of the axes' values. The number of configurations may be lower."""
        return math.prod(map(len, self.axes.values()))

    @property
    def can_be_listed(self) -> bool:
        """Whether the space is small enough to list all its configurations."""
        return self.size <= ENUMERABLE

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for spaces with the same configurations, in any order."""
        return digest("\n".join(sorted(_text(configuration.params) for configuration in self)))

    @cached_property
    def only(self) -> Configuration | None:
        """The only configuration of the space; None if it has several.

        :raises SpaceError: for an empty space.
        """
        first_two = list(itertools.islice(self, 2))
        if not first_two:
            raise SpaceError("the space of configurations is empty: none is listed, or where= allows none")
        if len(first_two) == 2:
            return None
        return first_two[0]

    def sample(self, number: int, seed: str) -> list[Configuration]:
        """Return every configuration. Of a space that cannot be listed, return at most ``number`` configurations.

        The sample is the same for the same seed.
        """
        if self.can_be_listed:
            return list(self)
        generator = random.Random(seed)
        sample: dict[tuple[Value, ...], Configuration] = {}
        for _ in range(ENUMERABLE):
            params = tuple(generator.choice(values) for values in self.axes.values())
            configuration = self.find(params)
            if configuration is not None:
                sample[configuration.params] = configuration
            if len(sample) == number:
                break
        return list(sample.values())


class ListedSpace(Space):
    """A space of configurations that the caller listed."""

    def __init__(self, configs: Iterable[object]) -> None:
        self._by_params: dict[tuple[Value, ...], Configuration] = {}
        for config in configs:
            params = params_of(config)
            self._by_params.setdefault(params, Configuration(params, config))
        if isinstance(configs, (set, frozenset)):  # the order of a set differs between processes
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
    """A space of all combinations of the values of named axes that a constraint allows."""

    def __init__(self, axes: Mapping[str, Iterable[object]], where: Callable[[dict[str, Any]], object] | None) -> None:
        #: For each axis, the caller's value by its encoded value.
        self._values: dict[str, dict[Value, object]] = {}
        for name, values in axes.items():
            self._values[name] = {param_value(name, value): value for value in values}
        self._where = where

    def __iter__(self) -> Iterator[Configuration]:
        for params in itertools.product(*self._values.values()):
            configuration = self.find(params)
            if configuration is not None:
                yield configuration

    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        params_by_name = {value.name: value for value in params}
        if params_by_name.keys() != self._values.keys() or len(params_by_name) != len(params):
            return None
        config = {}
        for name, values in self._values.items():
            if params_by_name[name] not in values:
                return None
            config[name] = values[params_by_name[name]]
        if not self._allows(config):
            return None
        return Configuration(tuple(params_by_name[name] for name in sorted(params_by_name)), config)

    def _allows(self, config: dict[str, Any]) -> bool:
        if self._where is None:
            return True
        try:
            return bool(self._where(dict(config)))
        except Exception as error:
            values = ", ".join(f"{name}={value!r}" for name, value in config.items())
            message = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise SpaceError(f"where= of product() failed for {values}: {message}") from error

    @cached_property
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        return {name: tuple(self._values[name]) for name in sorted(self._values)}

    @cached_property
    def digest(self) -> str:
        if self.can_be_listed:
            return super().digest
        lines = [_text(values) for values in self.axes.values()]
        constraint = None
        if self._where is not None:
            constraint = source_text(self._where)
        return digest("\n".join([*lines, constraint or ""]))


def product(*, where: Callable[[dict[str, Any]], object] | None = None, **axes: Iterable[object]) -> Space:
    """Return a space of all combinations of the values of named axes: ``product(BLOCK=[16, 32], warps=[4, 8])``.

    Make the space once and pass it to every call, so that its digest is computed once.

    :param where: gets a combination as a mapping, and returns whether it is a configuration.
    :raises ValueError: without any axis.
    :raises TypeError: for an axis without several values.
    """
    if not axes:
        raise ValueError("product() takes at least one axis: product(BLOCK=[16, 32])")
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise TypeError(f"product(): the axis {name} takes several values, not {values!r}")
    return ProductSpace({name: tuple(values) for name, values in axes.items()}, where)


def as_space(space: object) -> Space:
    """Return the space for the argument ``space=``: a space, a mapping of axes, or configurations.

    :raises TypeError: for anything else.
    """
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
    """Return the params of a configuration: a mapping, a dataclass, a named tuple or one plain value.

    :raises TypeError: if the configuration has names that are not text.
    :raises UncacheableError: if a value has no stable form.
    """
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
    return tuple(param_value(name, parts[name]) for name in sorted(parts))


def _text(params: Iterable[Value]) -> str:
    return repr([value.encoded for value in params])
