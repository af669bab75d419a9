"""The identity of a call of an autotuned kernel: its problem, its candidates, and its fingerprint."""

from __future__ import annotations

import enum
import inspect
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import (
    NEW_CANDIDATES_TYPE,
    PRUNED,
    Device,
    Digest,
    Problem,
    UncacheableError,
    Value,
    plain_value,
)
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.tuners.shared.candidates import LaunchError
from pytest_autotune.tuners.shared.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.shared.scalars import DtypeName, unwrapped
from pytest_autotune.tuners.shared.source_digest import (
    FORM,
    DigestedSource,
    callable_text,
    digest,
    immutable_text,
    is_code,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.triton.internals import autotuners, environment

#: The functions of ``triton.heuristics``, each after the name of the value that it computes.
Heuristics = list[tuple[str, Callable[..., object]]]
#: The beginnings of the names of values that Triton's key lacks. Triton compiles these values in.
_CELLS = ("closure.", "heuristics.")
NAME = "triton"
#: Stands in the fingerprint for the candidates that a performance model leaves.
BY_MODEL = "by a performance model"


@dataclass(frozen=True)
class Call:
    """One call of a kernel that found no choice in Triton's memory."""

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    heuristics: Heuristics

    @classmethod
    def of(
        cls, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None], outer_heuristics: Iterable[Any] = ()
    ) -> Call:
        """Return the call that a benchmark function of Triton belongs to.

        :param outer_heuristics: the ``triton.heuristics`` around the autotuner.
        :raises LookupError: if the function is not the function of a known Triton.
        """
        args, kwargs = autotuners.find_arguments(bench_fn)
        return cls(autotuner, tuning_key, args, kwargs, list_heuristics(autotuner, outer_heuristics))

    @property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, Triton's own ``grid`` and ``warmup`` included."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """Return the arguments that Triton passes to its hooks for a config."""
        return {**self.named, **config.all_kwargs()}

    def adopt(self, config: Any, times_ms: Mapping[Any, float], seconds: float = 0.0) -> None:
        """Leave the autotuner in the state in which a benchmark that chose this config would leave it.

        The last launch may have been another candidate's. The hook therefore resets the tensors.

        :param times_ms: the time of each config, in milliseconds.
        :param seconds: the duration of the benchmark.
        :raises LaunchError: if the hook, which the kernel's author may have written, raises an error.
        """
        arguments = self.arguments(config)
        if not stream_is_capturing():
            try:
                self.autotuner.pre_hook(arguments, reset_only=True)
            except Exception as error:  # the hook refuses the arguments, so nothing is chosen
                raise LaunchError(error) from error
        self.autotuner.configs_timings = {timed: [time_ms] * 3 for timed, time_ms in times_ms.items()}
        self.autotuner.bench_time = seconds
        self.autotuner.cache[self.tuning_key] = config  # last: no thread may use a choice without the rest


def list_heuristics(autotuner: Any, outer_heuristics: Iterable[Any] = ()) -> Heuristics:
    """Return the functions of the ``triton.heuristics`` inside an autotuner, and of those around it."""
    functions: Heuristics = []
    for heuristics in (*autotuners.list_inner_heuristics(autotuner), *outer_heuristics):
        functions += heuristics.values.items()
    return functions


# The key of the problem.


def list_key_values(call: Call, function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the values that a choice depends on, by name: positions shift with defaults and keyword arguments.

    :param function: the function of the kernel.
    """
    autotuner = call.autotuner
    named = {name: value for name, value in call.named.items() if name in autotuner.arg_names}
    for name in dict.fromkeys(autotuner.keys):
        if name in named:
            yield name, named[name]
    for name, value in named.items():
        yield from _list_compiled_in(name, value, is_key=name in autotuner.keys)
    yield from _list_cells("closure", function)
    for name, heuristic in call.heuristics:
        heuristic_function = python_function(heuristic)
        if heuristic_function is not None:
            yield from _list_cells(f"heuristics.{name}", heuristic_function)


def _list_compiled_in(name: str, value: Any, is_key: bool) -> Iterator[tuple[str, object]]:
    """Yield the dtypes of an argument, also those in tuples and descriptors, and a function outside of the key."""
    if hasattr(value, "dtype"):
        yield f"{name}.dtype", DtypeName(str(value.dtype))
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            yield from _list_compiled_in(f"{name}.{position}", item, is_key)
    elif hasattr(getattr(value, "base", None), "dtype"):
        yield f"{name}.base.dtype", DtypeName(str(value.base.dtype))
    elif not is_key and python_function(unwrapped(value)) is not None:
        yield name, value


def _list_cells(prefix: str, function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, value in closure_cells(function).items():
        if not is_code(value):
            yield f"{prefix}.{name}", value


def encode_key_value(name: str, value: object) -> Value:
    """Encode a part of a key so that equal keys of Triton are equal: its memory holds True, 1 and 1.0 as one key.

    In a closure these are three values.

    :raises UncacheableError: if the value has no stable form.
    """
    value = unwrapped(value)
    if name.startswith(_CELLS):
        return stable_value(name, value, dtype_apart=True)
    if isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum):
        return plain_value(name, int(value))
    if _is_number(name, value):
        number = float(value)  # type: ignore[arg-type]
        if number.is_integer():
            return plain_value(name, int(number))
        return plain_value(name, number)
    return stable_value(name, value, dtype_apart=not isinstance(value, DtypeName))


def _is_number(name: str, value: object) -> bool:
    """Whether Triton compares a part of a key by its number alone, as it does the member of an IntEnum."""
    return not name.startswith(_CELLS) and isinstance(unwrapped(value), numbers.Real)


# The identity of a call.


@dataclass(frozen=True)
class CallIdentity:
    """The problem of a call, and the facts that its choice depends on.

    :param uncacheable: names the value that has no stable form. The other fields are empty then.
    :param config_by_params: the candidates by their params.
    :param source: the source of the kernel and its heuristics.
    """

    problem: Problem
    uncacheable: str = ""
    fingerprint: tuple[Value, ...] = ()
    config_by_params: Mapping[tuple[Value, ...], Any] = field(default_factory=dict)
    source: DigestedSource | None = None


def compute_identity(call: Call, function: FunctionType, configs: Sequence[Any], device: Device) -> CallIdentity:
    """Return the identity of a call.

    :param function: the function of the kernel.
    :param configs: the candidates that pruning left.
    """
    key: list[Value] = []
    reason = ""
    if function.__name__ == "<lambda>":
        reason = "a lambda has no name"
    observer = autotuners.find_search_observer(call.autotuner, function)
    if observer:
        reason = f"{observer} sees each search, so there is one"
    arguments = list(list_key_values(call, function))
    for name, value in arguments:
        try:
            key.append(encode_key_value(name, value))
        except UncacheableError as error:  # the rest of the key still tells problems apart
            reason = reason or str(error)
    problem = Problem(NAME, qualified_name(function), tuple(key), device)
    if reason:
        return CallIdentity(problem, reason)
    config_by_params: dict[tuple[Value, ...], Any] = {}
    try:
        for config, params in zip(configs, distinct_params(configs), strict=True):
            config_by_params.setdefault(params, config)
        source = _read_source(call.autotuner.fn, call.heuristics, arguments)
        fingerprint = [*_list_digest_values(call.autotuner, source), *_list_pruned_values(call.autotuner, configs)]
    except UncacheableError as error:
        return CallIdentity(problem, str(error))
    return CallIdentity(problem, "", tuple(fingerprint), config_by_params, source)


def compute_fingerprint(autotuner: Any, heuristics: Heuristics) -> tuple[Value, ...]:
    """Return the fingerprint of an autotuner's choices before pruning, as far as it is known without a call.

    :param heuristics: the functions of the ``triton.heuristics`` inside and around the autotuner.
    :raises UncacheableError: if a part of the fingerprint has no stable form.
    """
    return tuple(_list_digest_values(autotuner, _read_source(autotuner.fn, heuristics, ())))


def list_digests(call: Call, identity: CallIdentity, configs: Sequence[Any]) -> Iterator[Digest]:
    """Yield the parts that the digests of a fingerprint are made of.

    :param configs: the candidates that pruning left.
    """
    for value in identity.fingerprint:
        if value.name == "source" and identity.source is not None:
            yield digest_of_parts(str(value.value), identity.source.parts)
        elif value.name in ("search", PRUNED) and value.type in ("digest", NEW_CANDIDATES_TYPE):
            candidates = call.autotuner.configs
            if value.name == PRUNED:
                candidates = _select_before_model(call.autotuner, configs)
            yield digest_of_candidates(str(value.value), distinct_params(candidates))


def find_target_device() -> Device:
    """Return the device that Triton's driver compiles for; used if torch uses no GPU."""
    target = environment.find_target()
    if target.backend == "cpu":
        return devices.cpu()
    return Device(str(target.backend), environment.describe_arch(target))


# The fingerprint.


def _list_digest_values(autotuner: Any, source: DigestedSource) -> list[Value]:
    """Return the fingerprint before pruning."""
    return [
        Value("source", source.digest, FORM),
        Value("search", _compute_list_digest(autotuner.configs), "digest"),
        *list_settings(autotuner),
    ]


def _compute_list_digest(configs: Iterable[Any]) -> str:
    return digest("\n".join(sorted(search_text(config) for config in configs)))


def _list_pruned_values(autotuner: Any, configs: Sequence[Any]) -> list[Value]:
    """Return a value for the candidates that pruning left; none if it left all.

    Pruning may depend on arguments outside of the key. A pruner may also make as many new candidates as there were.

    A performance model may leave another list each time. The value then stands for the candidates that the model chose
    from. The value differs from that of the whole list, because the best of a part may not be the best of all.

    :param configs: the candidates that pruning left.
    """
    all_configs = autotuner.configs
    has_model = autotuner.perf_model is not None
    if _is_same_list(configs, all_configs):
        return []
    before_model = _select_before_model(autotuner, configs)
    pruned_digest = _compute_list_digest(before_model)
    whole_digest = _compute_list_digest(all_configs)
    if pruned_digest == whole_digest:
        if has_model and _compute_list_digest(configs) != whole_digest:
            return [Value(PRUNED, BY_MODEL)]
        return []
    value_type = NEW_CANDIDATES_TYPE
    if set(map(search_text, before_model)) <= set(map(search_text, all_configs)):
        value_type = "digest"
    if has_model:
        pruned_digest = digest(f"{pruned_digest} {BY_MODEL}")
    return [Value(PRUNED, pruned_digest, value_type)]


def _is_same_list(configs: Sequence[Any], all_configs: Sequence[Any]) -> bool:
    """Whether two lists hold the same objects in the same order."""
    if configs is all_configs:
        return True
    if len(configs) != len(all_configs):
        return False
    return all(config is candidate for config, candidate in zip(configs, all_configs, strict=True))


def _select_before_model(autotuner: Any, configs: Sequence[Any]) -> Sequence[Any]:
    """Return the candidates that a performance model chose ``configs`` from; without a model, ``configs``."""
    if isinstance(configs, autotuners.PrunedConfigs):
        return configs.before_model
    if autotuner.perf_model is None:
        return configs
    return list(autotuner.configs)


def _read_source(kernel: Any, heuristics: Heuristics, arguments: Sequence[tuple[str, object]]) -> DigestedSource:
    """Return the source of a kernel, and of the compiled-in values that the key does not hold.

    :param arguments: the parts of the key.
    """
    source = read_source(kernel, named=False)
    texts, parts, libraries = [source.digest], dict(source.parts), source.libraries
    for name, function in heuristics:
        # A bound method has the function that a decorator wrapped, but not its object, as its Python function.
        if python_function(function) is None or inspect.ismethod(function):
            texts.append(f"{name}: {callable_text(function)}")
            continue
        heuristic_source = read_source(function)
        texts.append(f"{name}: {heuristic_source.digest}")
        for part_name, text in heuristic_source.parts.items():
            parts[f"{name}.{part_name}"] = text
        libraries = libraries | heuristic_source.libraries
    # The key holds the name of an enum's member, and the values of a named tuple. Their classes may be edited.
    for name, value in arguments:
        if has_names(value) and not _is_number(name, value):
            texts.append(f"{name}: {immutable_text(value)}")
    if len(texts) == 1:
        return source
    return DigestedSource(digest("\n".join(texts)), parts, libraries)


def list_settings(autotuner: Any) -> list[Value]:
    """Return a value for Triton's settings that change the compiled code; none if all have their defaults."""
    if autotuners.is_interpreted(autotuner):
        return []
    changed = list(environment.list_changed_settings())
    if not changed:
        return []
    return [Value("settings", ", ".join(changed), "settings")]


# The candidates.


def distinct_params(configs: Sequence[Any]) -> list[tuple[Value, ...]]:
    """Return the params of each candidate. Candidates with equal params get their further attributes, too.

    :raises UncacheableError: if such an attribute has no stable form, so that nothing tells two candidates apart.
    """
    params_of_configs = [_encode_params(config) for config in configs]
    counts = Counter(params_of_configs)
    distinct = []
    for params, config in zip(params_of_configs, configs, strict=True):
        if counts[params] > 1:
            params += tuple(_encode_extra(name, value) for name, value in _list_extras(config))
        distinct.append(params)
    return distinct


def _encode_params(config: Any) -> tuple[Value, ...]:
    return tuple(stable_value(name, value, dtype_apart=True) for name, value in config.all_kwargs().items())


def _list_extras(config: Any) -> Iterator[tuple[str, object]]:
    """Yield the attributes that Triton does not pass to the kernel: ``pre_hook``, and the attributes of a backend."""
    passed = config.all_kwargs()
    for name, value in sorted(vars(config).items()):
        if name != "kwargs" and name not in passed and value is not None:
            yield name, value


def _encode_extra(name: str, value: object) -> Value:
    if callable(value):
        return Value(name, callable_text(value), "function")
    return stable_value(name, value)


def search_text(config: Any) -> str:
    """Return the text that stands for a candidate in the digest of a list of candidates."""
    words = [value.encoded for value in _encode_params(config)]
    for name, value in config.all_kwargs().items():
        if has_names(value):
            words.append((name, "", str(immutable_text(value)), ""))
    for name, value in _list_extras(config):
        try:
            words.append(_encode_extra(name, value).encoded)
        except UncacheableError:  # the text then holds only the type, and the part that has a stable form
            text = ""
            if callable(value):
                text = callable_text(value, carried=False)
            words.append((name, type(value).__qualname__, text, ""))
    return repr(words)


def has_names(value: object) -> bool:
    """Whether a value has names that a key does not hold: the member of an enum, a named tuple."""
    value = unwrapped(value)
    if isinstance(value, enum.Enum) or hasattr(value, "_fields"):
        return True
    return isinstance(value, (tuple, list)) and any(map(has_names, value))
