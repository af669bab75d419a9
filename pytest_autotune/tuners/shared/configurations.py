"""The configurations that a library's own tuner tries, the question about them, and the results of its search.

For adapters of tuners that list all their configurations: ``cute``, ``cutile``, and Helion's finite lists. The
configurations of ``tune()`` are spaces: :mod:`pytest_autotune.tuners.function.space`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import (
    NO_VERSIONS,
    Candidate,
    Digest,
    Entry,
    Problem,
    UncacheableError,
    Value,
    Versions,
)
from pytest_autotune.cache.structured import structured_value
from pytest_autotune.cache.wording import describe_count, describe_error, rounded_us
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import MAX_REASONS, Tuning, stable_reason
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED
from pytest_autotune.tuners.source.source_digest import (
    FORM,
    DigestedSource,
    combine_sources,
    digest,
    read_code_in_values,
    stable_value,
)

#: The classes of Python's own mappings and scalars; see :func:`list_classes`.
_MAPPING_CLASSES = (dict, OrderedDict, defaultdict, MappingProxyType)
_SCALAR_CLASSES = (bool, int, float, str)
#: The result of a configuration that the library never tried.
NOT_TRIED = "the search did not try it"


def param_value(name: str, value: object) -> Value:
    """Encode a value of a configuration. A list, tuple or mapping of plain values is readable in the file.

    :raises UncacheableError: for a value without a stable form.
    """
    if isinstance(value, (list, tuple, Mapping)):
        try:
            return structured_value(name, value)
        except UncacheableError:
            pass  # such as a tuple with a dtype in it
    return stable_value(name, value)


def list_params(config: object) -> tuple[Value, ...]:
    """Return the params of a configuration: its values by name, as a cache holds them.

    The configuration may be a mapping, a dataclass, a named tuple, a namespace, or a single value. Example: the mapping
    ``{"tile": 64}`` gives ``tile=64``, and the single value 64 gives ``config=64``.

    :raises UncacheableError: for a value without a stable form, or names that are not text.
    """
    return tuple(param_value(name, value) for name, value in _list_named_values(config).items())


def _list_named_values(config: object) -> Mapping[Any, object]:
    """Return the values of a configuration by name; ``config`` is the name of a single value."""
    if isinstance(config, Mapping):
        return config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, tuple) and hasattr(config, "_asdict"):
        value_by_name: Mapping[Any, object] = config._asdict()
        return value_by_name
    if isinstance(config, SimpleNamespace):
        return vars(config)
    return {"config": config}


def list_config_values(config: object) -> list[object]:
    """Return the values of a configuration, and the items of its lists and mappings.

    Example: ``{"tile": (64, 32), "warps": 4}`` gives ``(64, 32)``, 64, 32 and 4.
    """
    listed: list[object] = []
    waiting = list(_list_named_values(config).values())
    while waiting:
        value = waiting.pop(0)
        listed.append(value)
        # The items of a value follow the value, before the next value.
        if isinstance(value, (list, tuple)):
            waiting = [*value, *waiting]
        elif isinstance(value, Mapping):
            waiting = [*value.values(), *waiting]
    return listed


def list_classes(value: object) -> list[type]:
    """Return the class of a value, and the classes of the values inside it, in order.

    The form of the value in a cache has none of these classes. Two kinds of classes are not told apart:

    - Numbers and texts of NumPy and of Python, such as ``np.int64(4)`` and ``4``, are one candidate. They add no class.
    - Mappings of Python with equal items, such as ``dict`` and ``OrderedDict``, are one candidate. Each gives ``dict``.
    """
    classes: list[type] = []
    cls = type(value)
    if cls in _MAPPING_CLASSES:
        classes.append(dict)
    elif cls not in _SCALAR_CLASSES and cls.__module__ != "numpy":
        classes.append(cls)
    for item in _list_items(value):
        classes += list_classes(item)
    return classes


def _list_items(value: object) -> Iterable[object]:
    """Return the values inside a value, in an order that equal values share."""
    if isinstance(value, (type, enum.Enum)):
        return ()
    if isinstance(value, Mapping):
        return [value[name] for name in sorted(value, key=str)]
    if isinstance(value, SimpleNamespace) or dataclasses.is_dataclass(value):
        return _list_named_values(value).values()
    if isinstance(value, (tuple, list)):
        return value
    return ()


def add_code_in_values(source: DigestedSource, values: Iterable[object], kernel: FunctionType | None) -> DigestedSource:
    """Return a source, and with it the user's code that some values lead to: functions, and the classes of objects.

    The methods of a configuration may decide how a kernel is launched. The order of the values does not matter.

    :raises UncacheableError: if the source of a class or function cannot be read.
    """
    code = read_code_in_values(list(values), kernel, in_any_order=True)
    if code is None:
        return source
    return combine_sources([source, code])


class Configurations:
    """The configurations of one search, in the library's order. Each is the library's own live object.

    :raises UncacheableError: for a configuration without a stable form, and for two configurations with equal params
        and different classes.
    """

    def __init__(self, configs: Iterable[Any]) -> None:
        self._by_params: dict[tuple[Value, ...], Any] = {}
        for config in configs:
            first = self._by_params.setdefault(list_params(config), config)
            if first is not config and list_classes(first) != list_classes(config):
                raise UncacheableError(f"a cache cannot tell {first!r} and {config!r} apart (add a field that differs)")

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for the same configurations in any order."""
        lines = [repr([value.encoded for value in params]) for params in self._by_params]
        return digest("\n".join(sorted(lines)))

    def list_candidates(self) -> list[Candidate]:
        """Return the configurations as a cache holds them, without times."""
        return [Candidate(params=params) for params in self._by_params]

    def find(self, candidate: Candidate) -> Any:
        """Return the configuration of a candidate.

        :raises KeyError: if the search has no such configuration.
        """
        return self._by_params[candidate.params]

    def has(self, candidate: Candidate | None) -> bool:
        """Whether a candidate is one of the configurations. A tuner with configurations has no ids."""
        return candidate is not None and not candidate.id and candidate.params in self._by_params


class ConfigurationQuestion(Question):
    """The question which of some configurations is the choice for a problem.

    The fingerprint has the digest of the kernel's source, the digest of the configurations, and ``settings``.

    :param source: the source of the kernel, and of all functions that the tuner calls beside it.
    :param settings: further values that must be equal for a choice to be trusted.
    """

    def __init__(
        self,
        problem: Problem,
        source: DigestedSource,
        configurations: Configurations,
        *,
        settings: Iterable[Value] = (),
        versions: Versions = NO_VERSIONS,
    ) -> None:
        self.source = source
        self.configurations = configurations
        fingerprint = [
            Value("source", source.digest, FORM),
            Value("search", configurations.digest, "digest"),
            *settings,
        ]
        super().__init__(problem, fingerprint, versions=versions, may_be_renamed=True)

    def note_large_source(self, session: Session) -> None:
        """Add a line to the summary if the source has so many parts that a library must be among them."""
        note = self.source.note(self.problem.name)
        if note:
            session.note(note)

    def offers(self, entry: Entry) -> bool:
        """Whether an entry's choice is among the configurations."""
        return self.configurations.has(entry.choice)

    def candidates(self) -> Sequence[Candidate]:
        """Return all configurations."""
        return self.configurations.list_candidates()

    def digests(self) -> Iterable[Digest]:
        """Return the functions and the configurations that the fingerprint is made of."""
        candidates = self.configurations.list_candidates()
        return [
            digest_of_parts(self.source.digest, self.source.parts),
            digest_of_candidates(self.configurations.digest, [candidate.params for candidate in candidates]),
        ]


class SearchResults:
    """The results of one search: for each configuration its time, or the words of its failure."""

    def __init__(self, configurations: Configurations) -> None:
        self._by_params: dict[tuple[Value, ...], Candidate] = {}
        for candidate in configurations.list_candidates():
            self._by_params[candidate.params] = dataclasses.replace(candidate, failed=NOT_TRIED)

    def note_time(self, config: object, time_us: float, label: str = "") -> None:
        """Note the time of a configuration, in microseconds.

        :param label: words about the measurement.
        """
        params = list_params(config)
        self._by_params[params] = Candidate(params=params, time_us=rounded_us(time_us), label=label)

    def note_failure(self, config: object, error: BaseException | str) -> None:
        """Note why a configuration cannot be used.

        :param error: the error that the configuration raised, or the reason in words.
        """
        if isinstance(error, BaseException):
            error = describe_error(error)
        params = list_params(config)
        self._by_params[params] = Candidate(params=params, failed=stable_reason(error) or "failed")

    def has_time(self, config: object) -> bool:
        """Whether a configuration was measured."""
        candidate = self._by_params.get(list_params(config))
        return candidate is not None and candidate.time_us is not None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All configurations with their results, in the order of the search."""
        return tuple(self._by_params.values())

    @property
    def fastest(self) -> Candidate | None:
        """The fastest configuration; None if every configuration failed."""
        timed = [candidate for candidate in self._by_params.values() if candidate.time_us is not None]
        if not timed:
            return None
        return min(timed, key=_time_us)

    @property
    def failure(self) -> str:
        """The words for a search in which every candidate failed: each distinct reason, the most frequent first."""
        counts: dict[str, int] = {}
        for candidate in self._by_params.values():
            counts[candidate.failed] = counts.get(candidate.failed, 0) + 1
        reasons = sorted(counts, key=counts.__getitem__, reverse=True)
        words = [f"{reason} ({describe_count(counts[reason], 'candidate')})" for reason in reasons[:MAX_REASONS]]
        return f"{EVERY_CANDIDATE_FAILED}: {'; '.join(words)}"

    def record(self, tuning: Tuning, choice: object) -> None:
        """Record the configuration that the library chose, with the results of all."""
        tuning.record(self._by_params[list_params(choice)], self.candidates)


def _time_us(candidate: Candidate) -> float:
    assert candidate.time_us is not None
    return candidate.time_us


def was_measured_for_this_problem(session: Session, tuning: Tuning) -> bool:
    """Whether the entry that the session offers was measured for this problem.

    A search has then launched the choice, so the tuner uses it without a trial.
    """
    if session.picks_candidates:
        return False  # a sweep offers every candidate, also one that does not compile
    # A fallback, such as --autotune-on-miss=nearest, offers a choice of another problem.
    return not tuning.lookup.fallback
