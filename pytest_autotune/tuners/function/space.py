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
from pytest_autotune.cache.structured import JSON_LIST, JSON_TUPLE
from pytest_autotune.tuners.function.carried import CarriedError, carried_text
from pytest_autotune.tuners.function.identity import configuration_value, list_class_lines, source_text
from pytest_autotune.tuners.shared.configurations import list_classes
from pytest_autotune.tuners.source.code_text import NoDigestError, UnreadableSourceError
from pytest_autotune.tuners.source.functions import find_deferred_kind
from pytest_autotune.tuners.source.source_digest import digest


class InvalidConfiguration(Exception):
    """The user's callback raises this error if a configuration cannot be used. The search goes on without it."""


class TuningError(RuntimeError):
    """No configuration could be chosen; the message names the problem and the reason.

    :param reasons: why each candidate failed, if all of them failed and would fail in the next run, too; else empty.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


#: A product with at most so many combinations is listed: its digest covers its configurations, so a constraint that is
#: written in another way keeps the digest. The digest of a larger product covers its axes and its constraint's source.
ENUMERABLE = 65536
#: The types of encoded values whose digest may also need the definition of a class.
_TYPES_WITH_CLASSES = frozenset({"enum", JSON_LIST, JSON_TUPLE})


@dataclass(frozen=True)
class Configuration:
    """One configuration of a space.

    :param params: the encoded values that identify the configuration, sorted by name.
    :param config: the object that the user's callbacks get.
    """

    params: tuple[Value, ...]
    config: Any = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(map(str, self.params))


class SpaceError(ValueError):
    """A space cannot be searched: it is empty, or its constraint failed."""


class Space(ABC):
    """A set of configurations in a fixed order.

    The *params* of a configuration are its encoded values, sorted by name. They identify it in a cache.
    """

    def __init__(self) -> None:
        #: The reason why no cache can hold a choice of this space; empty if a cache can.
        self.uncacheable = ""
        #: The functions among the values of configurations that have no digest; see :meth:`_encode`.
        self._functions_without_digest: list[object] = []

    def params_of(self, config: object) -> tuple[Value, ...]:
        """Return the params of a configuration, sorted by name.

        A mapping, a dataclass and a named tuple have a param for each of their parts: ``{"BLOCK": 16, "warps": 4}`` has
        the params ``BLOCK`` and ``warps``. Any other value, such as ``16``, has the single param ``config``.

        :raises TypeError: if the configuration has names that are not text.
        :raises UncacheableError: if a value has no stable form.
        """
        values_by_name = _list_parts(config)
        if not all(isinstance(name, str) for name in values_by_name):
            raise TypeError(f"space=: a configuration has names that are not text: {config!r}")
        return tuple(self._encode(name, values_by_name[name]) for name in sorted(values_by_name))

    def _encode(self, name: str, value: object) -> Value:
        """Encode a value of a configuration.

        A function whose source was edited or cannot be read has no digest, so no cache can name it. This process can
        still search the space. For this process, the encoded value has a number that tells such functions apart.

        :raises UncacheableError: if a value that is no such function has no stable form.
        """
        try:
            return configuration_value(name, value)
        except (NoDigestError, UnreadableSourceError) as error:
            # The first reason stays.
            self.uncacheable = self.uncacheable or str(error)
        return Value(name, f"function {self._number_of(value)} without a digest", "function")

    def _number_of(self, function: object) -> int:
        """Return the number of a function among the functions without a digest. A new function gets the next number."""
        for number, known_function in enumerate(self._functions_without_digest):
            if known_function is function:
                return number
        self._functions_without_digest.append(function)
        return len(self._functions_without_digest) - 1

    @abstractmethod
    def __iter__(self) -> Iterator[Configuration]:
        """Yield every configuration."""

    @abstractmethod
    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        """Return the configuration with these params; None if there is none."""

    @abstractmethod
    def _list_values(self) -> Iterable[tuple[Value, object]]:
        """Return the encoded values in configurations, each with the user's value, and perhaps more than once."""

    @cached_property
    def class_lines(self) -> tuple[str, ...]:
        """A line for each member of an enum and each named tuple in configurations; see :func:`list_class_lines`."""
        value_by_param: dict[Value, object] = {}
        for param, value in self._list_values():
            if param.type in _TYPES_WITH_CLASSES:
                value_by_param[param] = value
        lines: set[str] = set()
        for param, value in value_by_param.items():
            lines.update(list_class_lines(f"space.{param.name}", value))
        return tuple(sorted(lines))

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        """The values of each param, by its name. A constraint may exclude some of their combinations."""

    @property
    def size(self) -> int:
        """The number of combinations of the axes' values, also of combinations that a constraint excludes."""
        return math.prod(map(len, self.axes.values()))

    @property
    def can_be_listed(self) -> bool:
        """Whether the space is small enough to list all its configurations."""
        return self.size <= ENUMERABLE

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for spaces with the same configurations, in any order."""
        texts = []
        for configuration in self:
            text = _text(configuration.params)
            # {"config": 1} and 1 have the same params, and are two configurations.
            if len(configuration.params) == 1 and configuration.params[0].name == "config":
                text += _describe_kind(configuration.config)
            texts.append(text)
        return digest("\n".join(sorted(texts)))

    @cached_property
    def only(self) -> Configuration | None:
        """The only configuration of the space; None if it has several.

        :raises SpaceError: for an empty space.
        """
        # Two are enough to know: a space may have millions of configurations.
        first_two = list(itertools.islice(self, 2))
        if not first_two:
            raise SpaceError("the space of configurations is empty: none is listed, or where= allows none")
        if len(first_two) == 2:
            return None
        return first_two[0]

    def sample(self, number: int, seed: str) -> list[Configuration]:
        """Return every configuration if the space can be listed, else at most ``number`` configurations at random.

        The sample is the same for the same seed. It may be smaller than ``number`` if a constraint excludes most
        combinations, because only ``ENUMERABLE`` combinations are drawn.
        """
        if self.can_be_listed:
            return list(self)
        # A random number generator of its own leaves the state of the module ``random`` as it is.
        generator = random.Random(seed)
        sample: dict[tuple[Value, ...], Configuration] = {}
        for _ in range(ENUMERABLE):
            params = tuple(generator.choice(values) for values in self.axes.values())
            configuration = self.find(params)
            if configuration is None:  # the constraint excludes this combination
                continue
            sample[configuration.params] = configuration
            if len(sample) == number:
                break
        return list(sample.values())


class ListedSpace(Space):
    """A space of configurations that the user listed. Of configurations with equal params, the first stays.

    :raises TypeError: if two configurations have equal params and different classes, such as two dataclasses, or 1 and
        ``{"config": 1}``.
    """

    def __init__(self, configs: Iterable[object]) -> None:
        super().__init__()
        self._by_params: dict[tuple[Value, ...], Configuration] = {}
        for config in configs:
            params = self.params_of(config)
            first = self._by_params.setdefault(params, Configuration(params, config)).config
            _check_same_classes(first, config)
        # The order of a set differs between processes.
        if isinstance(configs, (set, frozenset)):
            self._by_params = {params: self._by_params[params] for params in sorted(self._by_params, key=_text)}

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self._by_params.values())

    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        return self._by_params.get(params)

    def _list_values(self) -> Iterator[tuple[Value, object]]:
        for params, configuration in self._by_params.items():
            value_by_name = _list_parts(configuration.config)
            for param in params:
                yield param, value_by_name[param.name]

    @property
    def can_be_listed(self) -> bool:
        return True

    @cached_property
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        # Dicts without values, because their keys keep the order of the configurations.
        values_by_name: dict[str, dict[Value, None]] = {}
        for params in self._by_params:
            for value in params:
                values_by_name.setdefault(value.name, {})[value] = None
        return {name: tuple(values_by_name[name]) for name in sorted(values_by_name)}


class ProductSpace(Space):
    """A space of all combinations of the values of named axes that a constraint allows.

    :raises TypeError: if two values of an axis differ only in their classes, see :class:`ListedSpace`.
    """

    def __init__(self, axes: Mapping[str, Iterable[object]], where: Callable[[dict[str, Any]], object] | None) -> None:
        super().__init__()
        #: For each axis by its name, the user's value by the encoded value.
        self._axes: dict[str, dict[Value, object]] = {}
        for name, values in axes.items():
            value_by_param: dict[Value, object] = {}
            for value in values:
                first = value_by_param.setdefault(self._encode(name, value), value)
                _check_same_classes(first, value)
            self._axes[name] = value_by_param
        self._where = where

    def __iter__(self) -> Iterator[Configuration]:
        for params in itertools.product(*self._axes.values()):
            configuration = self.find(params)
            if configuration is not None:
                yield configuration

    def find(self, params: tuple[Value, ...]) -> Configuration | None:
        param_by_name = {param.name: param for param in params}
        # A file that another program wrote may have a name twice.
        if len(param_by_name) < len(params):
            return None
        if param_by_name.keys() != self._axes.keys():
            return None
        config = {}
        for name, value_by_param in self._axes.items():
            param = param_by_name[name]
            if param not in value_by_param:
                return None
            config[name] = value_by_param[param]
        if not self._allows(config):
            return None
        sorted_params = [param_by_name[name] for name in sorted(param_by_name)]
        return Configuration(tuple(sorted_params), config)

    def _list_values(self) -> Iterator[tuple[Value, object]]:
        for value_by_param in self._axes.values():
            yield from value_by_param.items()

    def _allows(self, config: dict[str, Any]) -> bool:
        """Whether the constraint is true for a combination.

        :raises SpaceError: if the constraint raises an error; the message has the combination.
        """
        if self._where is None:
            return True
        try:
            # A copy, so that a constraint that changes its argument does not change the configuration.
            return bool(self._where(dict(config)))
        except Exception as error:
            values = ", ".join(f"{name}={value!r}" for name, value in config.items())
            message = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise SpaceError(f"where= of product() failed for {values}: {message}") from error

    @cached_property
    def axes(self) -> Mapping[str, tuple[Value, ...]]:
        return {name: tuple(self._axes[name]) for name in sorted(self._axes)}

    @cached_property
    def digest(self) -> str:
        if self.can_be_listed:
            return super().digest
        lines = [_text(values) for values in self.axes.values()]
        return digest("\n".join([*lines, self._describe_constraint()]))

    def _describe_constraint(self) -> str:
        """Return the digest of the constraint's source and the values that it carries, such as the limit of a test.

        A constraint whose source cannot be read counts like no constraint. If a value has no stable form, such as a
        list, only the source counts.
        """
        if self._where is None:
            return ""
        try:
            carried = carried_text(self._where)
        except (CarriedError, NoDigestError, UncacheableError):
            carried = ""
        source = source_text(self._where) or ""
        if carried:
            return f"{source}@{digest(carried)}"
        return source


def product(*, where: Callable[[dict[str, Any]], object] | None = None, **axes: Iterable[object]) -> Space:
    """Return a space of all combinations of the values of named axes: ``product(BLOCK=[16, 32], warps=[4, 8])``.

    Make the space once and pass it to every call, so that its digest is computed once.

    :param where: gets a combination as a mapping, and returns whether it is a configuration.
    :raises ValueError: without any axis.
    :raises TypeError: for an axis without several values, for a value that has no stable form in a cache, and for a
        ``where`` whose call does not run it.
    """
    if not axes:
        raise ValueError("product() takes at least one axis: product(BLOCK=[16, 32])")
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise TypeError(f"product(): the axis {name} takes several values, not {values!r}")
    kind = find_deferred_kind(where)
    if kind:
        raise TypeError(f"product(): where= returns {kind}, which is always true: pass a function that returns a bool")
    try:
        return ProductSpace({name: tuple(values) for name, values in axes.items()}, where)
    except UncacheableError as error:
        raise TypeError(f"product(): {error}") from None


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


def _list_parts(config: object) -> Mapping[Any, object]:
    """Return the values in a configuration by their names."""
    if isinstance(config, Mapping):
        return config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, tuple) and hasattr(config, "_asdict"):  # a named tuple
        named_values: Mapping[Any, object] = config._asdict()
        return named_values
    return {"config": config}


def _check_same_classes(first: object, second: object) -> None:
    """Check that two values with the same form in a cache have the same classes.

    :raises TypeError: if they differ: the tuner would never try the second value.
    """
    if first is second or list_classes(first) == list_classes(second):
        return
    raise TypeError(
        f"space=: a cache cannot tell {first!r} and {second!r} apart: list only one of them, or add a field that "
        "differs"
    )


def _describe_kind(config: object) -> str:
    """Return ``" named"`` for a configuration with named parts, such as a mapping; empty for a plain value."""
    if isinstance(config, Mapping) or dataclasses.is_dataclass(config) or hasattr(config, "_asdict"):
        return " named"
    return ""


def _text(params: Iterable[Value]) -> str:
    """Return encoded values as text, with their types: digests are made of this text, and sets are sorted by it."""
    return repr([value.encoded for value in params])
